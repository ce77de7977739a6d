package main

import "syscall"

// childAttributes keeps Ctrl-C from children, who are told to stop by the demo, and stops them if the demo is killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
}
