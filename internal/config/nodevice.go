package config

import (
	"fmt"
	"strings"
	"time"
)

// NoDevice returns how long a batch and each of its tokens take on the device none. That is for trials of many nodes on
// one machine: "none" takes no time, "none:4ms+40us" takes 4 ms for a batch and 40 µs more for each token.
func (c *Config) NoDevice() (batch, token time.Duration, err error) {
	times, ok := strings.CutPrefix(c.Device, "none:")
	if !ok {
		return 0, 0, nil
	}
	first, second, ok := strings.Cut(times, "+")
	if ok {
		batch, err = time.ParseDuration(first)
	}
	if ok && err == nil {
		token, err = time.ParseDuration(second)
	}
	if !ok || err != nil || batch < 0 || token < 0 || batch > time.Minute || token > time.Second {
		return 0, 0, fmt.Errorf("%q: want the times of a batch and of a token, such as none:4ms+40us", c.Device)
	}
	return batch, token, nil
}
