//go:build !amd64 || noasm

package team

import "runtime"

func pause() { runtime.Gosched() }
