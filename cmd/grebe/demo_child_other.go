//go:build !linux

package main

import "syscall"

// childAttributes keeps Ctrl-C from children, who are told to stop by the demo.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
