package offheap

import "syscall"

// noReserve maps memory that may never be used without counting it as used.
const noReserve = syscall.MAP_NORESERVE

// adviseHuge asks for huge pages; a system without them serves small ones.
func adviseHuge(b []byte) { _ = syscall.Madvise(b, 14 /* MADV_HUGEPAGE */) }

func discard(b []byte) { _ = syscall.Madvise(b, syscall.MADV_DONTNEED) }
