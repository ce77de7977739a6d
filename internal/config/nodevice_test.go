package config

import (
	"testing"
	"time"
)

func TestNoDevice(t *testing.T) {
	for _, c := range []struct {
		device       string
		batch, token time.Duration
		ok           bool
	}{
		{"none", 0, 0, true}, {"cpu", 0, 0, true}, {"none:4ms+40us", 4 * time.Millisecond, 40 * time.Microsecond, true},
		{"none:0s+0s", 0, 0, true}, {"none:4ms", 0, 0, false}, {"none:+40us", 0, 0, false}, {"none:4ms+x", 0, 0, false},
		{"none:-1ms+1us", 0, 0, false}, {"none:2m+1us", 0, 0, false}, {"none:1ms+2s", 0, 0, false},
	} {
		batch, token, err := (&Config{Device: c.device}).NoDevice()
		if batch != c.batch || token != c.token || (err == nil) != c.ok {
			t.Errorf("device %q takes %v for a batch and %v for a token, error %v", c.device, batch, token, err)
		}
	}
}
