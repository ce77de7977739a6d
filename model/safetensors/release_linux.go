package safetensors

import (
	"os"
	"syscall"
)

// release drops the pages that lie wholly in mapped[begin:end]; a page shared with a neighbour stays.
func release(mapped []byte, begin, end int) {
	page := os.Getpagesize()
	begin = (begin + page - 1) &^ (page - 1)
	if end != len(mapped) {
		end &^= page - 1
	}
	if begin < end {
		_ = syscall.Madvise(mapped[begin:end], syscall.MADV_DONTNEED) // advice: the data stays right without
	}
}
