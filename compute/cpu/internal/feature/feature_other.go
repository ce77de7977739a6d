//go:build !amd64 || !linux || noasm

package feature

func best() Level { return Plain }

func vnni() bool { return false }

func int8Tiles() bool { return false }
