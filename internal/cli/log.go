package cli

import (
	"io"
	"log/slog"
)

// LogFlags set the format and the level of the log.
type LogFlags struct {
	LogFormat string `default:"text" enum:"text,json" help:"Format of the log: ${enum}."`
	LogLevel  string `default:"info" enum:"debug,info,warn,error" help:"Lowest level that is logged: ${enum}."`
}

// Logger returns a logger that writes to w.
func (f *LogFlags) Logger(w io.Writer) *slog.Logger {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.LogLevel)); err != nil {
		panic(err) // the parser allows only levels of slog
	}
	opt := &slog.HandlerOptions{Level: level}
	if f.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opt))
	}
	return slog.New(slog.NewTextHandler(w, opt))
}
