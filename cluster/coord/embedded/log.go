package embedded

import (
	"context"
	"log/slog"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"

	"go.uber.org/zap/zapcore"
)

// core passes what etcd logs to slog. Etcd is talkative: its information becomes debug output.
type core struct {
	log     *slog.Logger // nil: nothing is logged
	closing *atomic.Bool // the server is being closed
	attrs   []any
}

func level(l zapcore.Level) slog.Level {
	switch {
	case l >= zapcore.ErrorLevel:
		return slog.LevelError
	case l == zapcore.WarnLevel:
		return slog.LevelWarn
	}
	return slog.LevelDebug
}

// quiet begin warnings that an operator can do nothing about. The first three are about what Grebe chooses for every
// server. The others are about one request that was slow, as happens on a small or busy machine. Requests that time out
// are errors of the caller, and etcd warns of a slow disk and of late heartbeats in other words.
var quiet = []string{
	"Running http and grpc server on single port",
	"it isn't recommended to use default name",
	"simple token is not cryptographically signed",
	"apply request took too long",
	"request stats",
}

func levelOf(e zapcore.Entry) slog.Level {
	quieted := func(begin string) bool { return strings.HasPrefix(e.Message, begin) }
	if e.Level == zapcore.WarnLevel && slices.ContainsFunc(quiet, quieted) {
		return slog.LevelDebug
	}
	return level(e.Level)
}

// closedListener matches what net, net/http and cmux say where they accept connections no more.
var closedListener = regexp.MustCompile(`(server closed|Server closed|use of closed network connection)$`)

// ofClosing reports whether an entry is about a listener that ended. Etcd calls that an error even if it was asked to.
func ofClosing(fields []zapcore.Field) bool {
	return slices.ContainsFunc(fields, func(f zapcore.Field) bool {
		err, ok := f.Interface.(error)
		return ok && closedListener.MatchString(err.Error())
	})
}

func (c *core) Enabled(l zapcore.Level) bool {
	return c.log != nil && c.log.Enabled(context.Background(), level(l))
}

func (c *core) With(fields []zapcore.Field) zapcore.Core {
	return &core{c.log, c.closing, append(c.attrs[:len(c.attrs):len(c.attrs)], attrs(fields)...)}
}

func (c *core) Check(e zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.log != nil && c.log.Enabled(context.Background(), levelOf(e)) {
		return checked.AddCore(e, c)
	}
	return checked
}

func (c *core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	at := levelOf(e)
	if c.closing.Load() && ofClosing(fields) {
		at = slog.LevelDebug
	}
	all := append([]any{"etcd", true}, c.attrs...)
	c.log.Log(context.Background(), at, e.Message, append(all, attrs(fields)...)...)
	return nil
}

func (c *core) Sync() error { return nil }

func attrs(fields []zapcore.Field) (out []any) {
	m := zapcore.NewMapObjectEncoder()
	for _, f := range fields {
		f.AddTo(m)
	}
	for _, f := range fields {
		if v, ok := m.Fields[f.Key]; ok {
			out = append(out, f.Key, v)
		}
	}
	return out
}
