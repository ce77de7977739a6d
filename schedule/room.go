package schedule

// Crowded reports whether an entry that was dropped made room: at most an eighth of the memory was free. A deletion from
// memory with more is none.
func Crowded(used, total int64) bool { return used >= total-total/8 }

// HasRoom reports whether so many bytes can be kept and displace nobody. What an eviction just freed is no such room: memory
// that was full, because it was Crowded, counts as full until half of it is free. Full says whether it still does.
func HasRoom(bytes, used, total int64, wasFull bool) (room, full bool) {
	free := total - used
	full = wasFull && free <= total/2
	return !full && free >= bytes, full
}
