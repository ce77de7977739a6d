package app

import (
	"log/slog"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/internal/config"
)

// room is a device's own memory of which some is free.
type room struct {
	compute.Memory
	free, total int64
}

func (r room) Sizes() (free, total int64) { return r.free, r.total }

// TestDeviceMemory: bytes are taken as given, and shares are of what was free at the start, not of what others use.
func TestDeviceMemory(t *testing.T) {
	for name, v := range map[string]struct {
		size       config.Size
		start, now int64
		want       int64
		err        string
	}{
		"share of a free device":                    {config.Size{Percent: 80}, 1000, 900, 400, ""},
		"share beside another process":              {config.Size{Percent: 50}, 200, 190, 50, ""},
		"share that leaves room for activations":    {config.Size{Percent: 100}, 1000, 300, 270, ""},
		"bytes":                                     {config.Size{Bytes: 700}, 1000, 900, 700, ""},
		"bytes that are nearly all of what is free": {config.Size{Bytes: 900}, 1000, 900, 900, ""},
		"more bytes than are free": {config.Size{Bytes: 901}, 1000, 900, 0,
			"device_memory: 901 bytes for KV"},
		"none": {config.Size{}, 1000, 900, 0, ""},
	} {
		cfg := &config.Config{Models: []config.Model{{Name: "a", Path: "a"}, {Name: "b", Path: "b"}}}
		cfg.Models[0].DeviceMemory = v.size
		a := newApp(Options{Log: slog.New(slog.DiscardHandler)})
		a.freeAtStart = v.start
		got, err := newMemory(a).deviceBytes(cfg, &cfg.Models[0], room{free: v.now, total: 2000})
		if got != v.want || (err == nil) != (v.err == "") || err != nil && !strings.Contains(err.Error(), v.err) {
			t.Errorf("%s: %d, %v; want %d, %q", name, got, err, v.want, v.err)
		}
	}
}
