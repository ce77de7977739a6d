//go:build !noasm

package team

// pause tells the core that it spins.
//
//go:noescape
func pause()
