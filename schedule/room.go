package schedule

// Crowded reports whether an entry was dropped to make room: at most an eighth of the memory was free. With more free
// memory it was deleted for another reason.
func Crowded(used, total int64) bool { return used >= total-total/8 }

// HasRoom reports whether that many bytes can be kept without evicting anything. Space just freed by an eviction does
// not count: memory that was full, because it was Crowded, counts as full until half of it is free. full reports
// whether it still does.
func HasRoom(bytes, used, total int64, wasFull bool) (room, full bool) {
	free := total - used
	full = wasFull && free <= total/2
	return !full && free >= bytes, full
}
