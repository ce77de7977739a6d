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

// addPeers runs the script of the peers and puts what they took beside the lines.
func (r *Report) addPeers(ctx context.Context, python string, tokens []int) error {
	f, err := os.CreateTemp("", "grebe-peers-*.py") // it starts itself again
	if err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	defer os.Remove(f.Name())
	if _, err := f.Write(peersScript); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("peers: %w", err)
	}
	args := []string{f.Name()}
	for _, n := range tokens {
		args = append(args, strconv.Itoa(n))
	}
	cmd := exec.CommandContext(ctx, python, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("peers by %s: %w", python, err)
	}
	var answer struct {
		Torch string `json:"torch"`
		Peers []Peer `json:"peers"`
	}
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		return fmt.Errorf("peers by %s: their answer: %w", python, err)
	}
	r.Torch = answer.Torch
	r.place(answer.Peers)
	return nil
}

// place puts peers beside the lines that they name.
func (r *Report) place(peers []Peer) {
	for _, p := range peers {
		for i := range r.Lines {
			if r.Lines[i].Key == p.Line {
				r.Lines[i].Peers = append(r.Lines[i].Peers, p)
			}
		}
	}
}

// sustainedRates reads a report of bench rank: what automatic prefixes sustain to what user prefixes do.
func sustainedRates(file string) ([]Line, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var report struct {
		Workloads []struct {
			Name     string `json:"name"`
			Policies []struct {
				Name  string `json:"name"`
				Found *struct {
					Rate float64 `json:"rate"`
				} `json:"found"`
			} `json:"policies"`
		} `json:"workloads"`
	}
	if err := json.Unmarshal(data, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var out []Line
	for _, w := range report.Workloads {
		rates := map[string]float64{}
		l := Line{Key: "sustained-" + w.Name, Name: "sustained ranking, " + w.Name + ", auto to UP", Unit: "×", Must: 1.6,
			Aim: 2, AtLeast: true}
		for _, p := range w.Policies {
			if p.Found == nil {
				continue
			}
			rates[p.Name] = p.Found.Rate
			l.Peers = append(l.Peers, Peer{Name: p.Name + "/s", Value: p.Found.Rate})
		}
		auto, ok := rates["auto"]
		if !ok || rates["UP"] == 0 {
			return nil, fmt.Errorf("%s: %s: no sustained rates of auto and UP", file, w.Name)
		}
		l.Median = auto / rates["UP"]
		out = append(out, l)
	}
	return out, nil
}
