//go:build !linux

package beam

import "time"

var began = time.Now()

func threadTime() time.Duration { return time.Since(began) }
