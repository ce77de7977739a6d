//go:build !amd64 || !linux || noasm

package feature

func best() Level { return Plain }
