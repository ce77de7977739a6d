package rows

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
)

//go:embed peers.py
var peersScript string

// addPeers puts PyTorch's times beside the lines.
func (r *Report) addPeers(ctx context.Context, o *Options) error {
	sizes, err := json.Marshal(map[string]any{"bytes": o.Bytes, "features": o.Features, "requests": o.Requests,
		"bag": o.Bag, "users": o.Users, "events": o.Events, "row_bytes": o.RowBytes, "repeats": o.Repeats})
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, o.Peers, "-c", peersScript, string(sizes))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("peers by %s: %w", o.Peers, err)
	}
	return r.placePeers(out.Bytes())
}

func (r *Report) placePeers(answer []byte) error {
	var a struct {
		Torch string `json:"torch"`
		Peers []struct {
			Name     string  `json:"name"`
			Format   string  `json:"format"`
			RowBytes int     `json:"row_bytes"`
			Micros   float64 `json:"us"`
		} `json:"peers"`
	}
	if err := json.Unmarshal(answer, &a); err != nil {
		return fmt.Errorf("peers: their answer: %w", err)
	}
	r.Torch = a.Torch
	for _, p := range a.Peers {
		for i := range r.Lines {
			if l := &r.Lines[i]; l.Name == p.Name && l.Format == p.Format && l.RowBytes == p.RowBytes {
				l.Peer = p.Micros
			}
		}
	}
	return nil
}
