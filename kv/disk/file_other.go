//go:build !linux

package disk

import (
	"errors"
	"os"
)

func punches(*os.File) bool { return false }

func (f osFile) Punch(off, n int64) error { return errors.ErrUnsupported }

func (f osFile) Writeback(off, n int64) {}

func (f osFile) NextData(off int64) (int64, error) { return off, nil }
