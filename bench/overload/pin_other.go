//go:build !linux

package overload

import "os/exec"

// startApart starts a command. Cores are not chosen on this system.
func startApart(cmd *exec.Cmd) error { return cmd.Start() }
