package server

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sinceData returns how long ago the last bytes of a connection arrived, read or not: on a busy machine a request may wait in the
// kernel longer than it takes to compute. 0 where the system does not tell.
func sinceData(c syscall.Conn) time.Duration {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	var ago time.Duration
	_ = raw.Control(func(fd uintptr) { // fails only when the connection is closed
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			ago = time.Duration(info.Last_data_recv) * time.Millisecond
		}
	})
	return ago
}
