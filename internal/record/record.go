// Package record logs the inputs and the decisions of the rooms that decide, so that a run can be replayed.
//
// A Log has a line for each input, with a room's name in front, and behind it a line for each decision that followed:
//
//	kv0 need device
//	kv0 . pins k4- k9+
//	kv0 . lower k9
//
// A room writes while it holds the lock that guards what it decides on. So the lines of one room are in the order in
// which things happened to it. Keys are digests; a log names them k0, k1, … and says the first eight bytes of each
// once. It has no texts and no ids of users or items.
//
// A nil *Room records nothing. Who builds arguments that cost something asks On first.
package record

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Log writes lines. Its lock is a leaf.
type Log struct {
	mu    sync.Mutex
	w     *bufio.Writer
	keys  map[[32]byte]int
	rooms map[string]int
	line  []byte
	room  int64 // bytes that may still be written
	err   error
}

// header begins a log. Behind it keys and rooms are named anew.
const header = "# grebe record 1\n"

// ErrFull says that a log has as many bytes as it may.
var ErrFull = errors.New("record: the log is full: what happened since is not in it")

// New returns a log of up to most bytes that writes to w. The caller MUST Close it.
func New(w io.Writer, most int64) *Log {
	l := &Log{w: bufio.NewWriterSize(w, 1<<16), keys: map[[32]byte]int{}, rooms: map[string]int{}, room: most}
	l.put([]byte(header))
	return l
}

// put writes a line, or nothing after the first one that could not be written.
func (l *Log) put(line []byte) {
	if l.err == nil && int64(len(line)) > l.room {
		l.err = ErrFull
	}
	if l.err == nil {
		l.room -= int64(len(line))
		_, l.err = l.w.Write(line)
	}
}

// Close writes what is buffered and returns the first error of any write. Rooms may go on: what they write is dropped.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w != nil {
		if err := l.w.Flush(); l.err == nil {
			l.err = err
		}
		l.w = nil
	}
	return l.err
}

// Room returns a room of the log, whose name is kind and a number. A nil Log has nil rooms.
func (l *Log) Room(kind string) *Room {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.rooms[kind]
	l.rooms[kind]++
	return &Room{log: l, name: kind + strconv.Itoa(n)}
}

// Sub returns another room of the same log.
func (r *Room) Sub(kind string) *Room {
	if r == nil {
		return nil
	}
	return r.log.Room(kind)
}

// Room writes the lines of one room.
type Room struct {
	log  *Log
	name string
	mu   sync.Mutex // see Lock
}

// Lock keeps an input and its decision together where the room's owner holds no lock while it decides: other goroutines
// that call Lock wait until Unlock. The room MUST NOT be nil.
func (r *Room) Lock() { r.mu.Lock() }

// Unlock ends what Lock began.
func (r *Room) Unlock() { r.mu.Unlock() }

// On reports whether anything is recorded.
func (r *Room) On() bool { return r != nil }

// In writes an input. Values are keys ([32]byte types), numbers, booleans, strings, durations, and slices of these.
func (r *Room) In(op string, values ...any) { r.write("", op, values) }

// Did writes a decision that followed from the last input.
func (r *Room) Did(op string, values ...any) { r.write(". ", op, values) }

func (r *Room) write(mark, op string, values []any) {
	if r == nil {
		return
	}
	l := r.log
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.w == nil || l.err != nil {
		return
	}
	l.line = append(l.line[:0], r.name...)
	l.line = append(append(append(l.line, ' '), mark...), op...)
	for _, v := range values {
		l.line = l.value(append(l.line, ' '), v)
	}
	l.line = append(l.line, '\n')
	l.put(l.line)
}

// Keys returns keys as a Room takes them.
func Keys[K ~[32]byte](keys []K) []any {
	out := make([]any, len(keys))
	for i := range keys {
		out[i] = [32]byte(keys[i])
	}
	return out
}

// Names returns values as a Room takes them.
func Names[T fmt.Stringer](values []T) []any {
	out := make([]any, len(values))
	for i := range values {
		out[i] = values[i]
	}
	return out
}

// Text returns an operation and values, none of them keys, as a log has them.
func Text(op string, values ...any) string {
	b := []byte(op)
	for _, v := range values {
		b = (*Log)(nil).value(append(b, ' '), v)
	}
	return string(b)
}

// value appends a value. Floats have as many digits as tell them apart.
func (l *Log) value(b []byte, v any) []byte {
	switch v := v.(type) {
	case [32]byte:
		return l.key(b, v)
	case bool:
		if v {
			return append(b, '+')
		}
		return append(b, '-')
	case int:
		return strconv.AppendInt(b, int64(v), 10)
	case int32:
		return strconv.AppendInt(b, int64(v), 10)
	case int64:
		return strconv.AppendInt(b, v, 10)
	case uint64:
		return strconv.AppendUint(b, v, 10)
	case time.Duration:
		return strconv.AppendInt(b, int64(v), 10)
	case float64:
		return strconv.AppendFloat(b, v, 'g', -1, 64)
	case float32:
		return strconv.AppendFloat(b, float64(v), 'g', -1, 32)
	case string:
		if v == "" || strings.ContainsAny(v, " \t\n\"[],") {
			return strconv.AppendQuote(b, strings.ReplaceAll(v, " ", "_"))
		}
		return append(b, v...)
	case fmt.Stringer:
		return l.value(b, v.String())
	}
	return l.list(b, v)
}

// list appends a slice as [a,b,c].
func (l *Log) list(b []byte, v any) []byte {
	b = append(b, '[')
	switch v := v.(type) {
	case []int32:
		b = list(l, b, v)
	case []float32:
		b = list(l, b, v)
	case []float64:
		b = list(l, b, v)
	case []uint64:
		b = list(l, b, v)
	case []any:
		b = list(l, b, v)
	default:
		panic(fmt.Sprintf("record: a value of type %T", v))
	}
	return append(b, ']')
}

func list[T any](l *Log, b []byte, values []T) []byte {
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = l.value(b, v)
	}
	return b
}

// key names a digest, and says its first eight bytes when it is new.
func (l *Log) key(b []byte, k [32]byte) []byte {
	n, known := l.keys[k]
	if !known {
		n = len(l.keys)
		l.keys[k] = n
	}
	b = strconv.AppendInt(append(b, 'k'), int64(n), 10)
	if !known {
		b = fmt.Appendf(append(b, ':'), "%016x", binary.LittleEndian.Uint64(k[:]))
	}
	return b
}
