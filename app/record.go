package app

import (
	"errors"
	"fmt"
	"os"

	"grebe/internal/human"
	"grebe/internal/record"
)

// maxRecord is the largest size of a record, in bytes.
const maxRecord = 4 << 30

// openRecord opens the file that decisions are recorded in, or returns nil if none is configured. It is closed last.
func (a *App) openRecord(file string) (*record.Log, error) {
	if file == "" {
		return nil, nil
	}
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("record of decisions: %w", err)
	}
	a.log.Warn("recording decisions: this costs time, and the file grows", "file", file,
		"at_most", human.Bytes(maxRecord))
	l := record.New(f, maxRecord)
	a.closers.add(func() error {
		if err := errors.Join(l.Close(), f.Close()); err != nil {
			return fmt.Errorf("record of decisions: %w", err)
		}
		return nil
	})
	return l, nil
}
