package offheap

import "syscall"

// adviseHuge asks for huge pages; a system without them serves small ones.
func adviseHuge(b []byte) { _ = syscall.Madvise(b, 14 /* MADV_HUGEPAGE */) }
