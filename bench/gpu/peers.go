package gpu

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strconv"
)

//go:embed peers.py
var peersScript []byte

// Peer is what another engine took.
type Peer struct {
	Name   string  `json:"name"`
	Tokens int     `json:"tokens"`
	MS     float64 `json:"ms"`
}

// peers runs the script of the peers.
func peers(ctx context.Context, python string, tokens []int) ([]Peer, error) {
	args := []string{"-"}
	for _, n := range tokens {
		args = append(args, strconv.Itoa(n))
	}
	cmd := exec.CommandContext(ctx, python, args...)
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(peersScript), &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("peers by %s: %w", python, err)
	}
	var all []Peer
	if err := json.Unmarshal(out.Bytes(), &all); err != nil {
		return nil, fmt.Errorf("peers by %s: their answer: %w", python, err)
	}
	return all, nil
}
