//go:build !linux

package offheap

const noReserve = 0

func adviseHuge([]byte) {}

func discard([]byte) {}
