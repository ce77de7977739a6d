package app

import (
	bin "encoding/binary"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/config"
)

// A checkpoint with a tensor of NaN does not start: a start checks every tensor, as a reload does.
func TestStartRefusesWeightsOfNaN(t *testing.T) {
	w := newReloadWorld(t)
	name := filepath.Join(w.dir, "a", "model.safetensors")
	sound, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	n := 8 + bin.LittleEndian.Uint64(sound)
	var tensors map[string]struct {
		Offsets [2]uint64 `json:"data_offsets"`
	}
	if err := json.Unmarshal(sound[8:n], &tensors); err != nil {
		t.Fatal(err)
	}
	for tensor, at := range tensors {
		if tensor == "__metadata__" || strings.Contains(tensor, "layers.1.") { // the first layer's are like them
			continue
		}
		spoil(t, name, func([]byte) []byte {
			data := append([]byte(nil), sound...)
			for i := n + at.Offsets[0]; i < n+at.Offsets[1]; i++ {
				data[i] = 0xff // NaN in every format
			}
			return data
		})
		s, err := Load(t.Context(), w.cfg, Options{Log: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), "does not answer") {
			t.Errorf("%s: %v", tensor, err)
		}
		if err == nil {
			s.Close()
		}
	}
	if err := os.WriteFile(name, sound, 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Load(t.Context(), w.cfg, Options{Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Files of a checkpoint that are devices or pipes are refused at once.
func TestStartRefusesFilesThatAreNone(t *testing.T) {
	for _, name := range []string{"config.json", "tokenizer.json", "model.safetensors"} {
		for _, device := range []bool{true, false} {
			w := newReloadWorld(t)
			path := filepath.Join(w.dir, "a", name)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			var err error
			if device {
				err = os.Symlink("/dev/zero", path)
			} else {
				err = syscall.Mkfifo(path, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			s, err := Load(t.Context(), w.cfg, Options{Log: slog.New(slog.DiscardHandler)})
			if err == nil || !strings.Contains(err.Error(), "regular file") {
				t.Errorf("%s, device %v: %v", name, device, err)
			}
			if err == nil {
				s.Close()
			}
		}
	}
}

// A model whose rankings are all refused is warned about at the start, and each refusal names the key.
func TestAModelWithoutAnInstructionIsWarnedAbout(t *testing.T) {
	w := newReloadWorld(t)
	w.cfg.Models[0].Prompt.Instruction, w.cfg.Models[0].Codes = config.Text{}, config.Codes{}
	var log syncBuffer
	s, err := Load(t.Context(), w.cfg, Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if !strings.Contains(log.String(), "models[0].prompt.instruction") {
		t.Errorf("no warning at the start:\n%s", log.String())
	}
	_, err = s.Service().Rank(t.Context(), &grebev1.RankRequest{User: &grebev1.User{Id: "u1"},
		Candidates: []*grebev1.Item{{Id: "i1"}}})
	if err == nil || !strings.Contains(err.Error(), `set models[].prompt.instruction of "m"`) {
		t.Errorf("a ranking: %v", err)
	}
}
