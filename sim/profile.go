package sim

import (
	"bytes"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"slices"
	"strings"

	"grebe/schedule"
)

// Profile describes a device with a model on it. Profiles are data: profiles/*.json, or a user's own file.
type Profile struct {
	Name string `json:"name"` // the file's name without .json
	// the command that measured it and when, or the published numbers that it is derived from
	Source string `json:"source"`
	// Derived is true if no such device was measured.
	Derived bool   `json:"derived"`
	Model   string `json:"model"` // whose prefill times these are, such as Qwen2-1.5B

	// Prefill is what a node begins to decide with. Without Batches, it also says how long batches take.
	Prefill schedule.PrefillModel `json:"prefill"`
	// Batches are the times of batches; nil: those that Prefill predicts.
	Batches *Batches `json:"batches,omitempty"`
	// Noise is the standard deviation of the logarithm of a batch's time, around the prediction. 0: every batch takes as
	// long as predicted.
	Noise   float64 `json:"noise"`
	MaxRows int     `json:"max_rows"` // most rows of a batch; 0: no limit

	KVTokenBytes int64 `json:"kv_token_bytes"` // KV of one token in all layers
	// the device's memory for KV, beside weights; 0: it computes in host memory
	DeviceBytes int64 `json:"device_bytes"`
	HostBytes   int64 `json:"host_bytes"` // host memory for KV
	// bytes per second from host memory to the device; unused without device memory
	HostLink float64 `json:"host_link"`

	// Slowdown is how many times as long as predicted a batch takes in a server, whose threads sleep between batches and
	// share the cores with other work. Batches are measured without a server. 0: as long.
	Slowdown float64 `json:"slowdown,omitempty"`
	// Added is added to each batch in a server: threads wake up, and their caches hold something else.
	Added float64 `json:"added_ms,omitempty"`
	// Ratios are those of measured and predicted times in a server. With them there is no Noise. A few batches take much
	// longer than the others, and they make the queue long.
	Ratios Ratios `json:"ratios,omitempty"`
	// Front is a server's work outside of batches. Without it, requests reach the queue at once.
	Front Front `json:"front,omitzero"`

	// RowBytes is the size of an embedding row, for models of events; 0: the model looks up none.
	RowBytes int64 `json:"row_bytes,omitempty"`
	// RowLink is the bytes per second at which missing rows are fetched.
	RowLink float64 `json:"row_link,omitempty"`
}

// Front is a server's work for a request outside of batches, in milliseconds: read it, make tokens, look up KV, answer.
type Front struct {
	Request float64 `json:"request_ms"` // per request
	Token   float64 `json:"token_ms"`   // per token of the prompt
	Item    float64 `json:"item_ms"`    // per candidate
	// Busy is added if a batch runs when the request comes: threads that compute have the cores.
	Busy float64 `json:"busy_ms,omitempty"`
	// Idle and Beside are how many times as long it takes if no batch runs when the request comes, and if one does.
	Idle   Ratios `json:"idle_ratios,omitempty"`
	Beside Ratios `json:"busy_ratios,omitempty"`
	// Shared means that it takes cores from the threads that compute. These wait for each other, so a batch that runs
	// meanwhile ends later: by Delay, or by the time of the work if that is 0.
	Shared bool    `json:"shared,omitempty"`
	Delay  float64 `json:"delay_ms,omitempty"`
}

// Tile returns the rows of a tile; 0: rows are computed one by one.
func (p *Profile) Tile() int {
	if p.Batches == nil {
		return 0
	}
	return p.Batches.Tile
}

// Predict returns the milliseconds of a batch that is computed alone.
func (p *Profile) Predict(w *Work) float64 {
	if p.Batches == nil {
		return p.Prefill.Predict(w.Rows, w.Keys, w.Requests)
	}
	return p.Batches.Predict(w)
}

// Served returns the milliseconds of a batch in a server, before Ratios or Noise.
func (p *Profile) Served(w *Work) float64 {
	ms := p.Predict(w)
	if p.Slowdown > 0 {
		ms *= p.Slowdown
	}
	return ms + p.Added
}

// ms returns the milliseconds of a request.
func (f *Front) ms(items, tokens int) float64 {
	return f.Request + float64(items)*f.Item + float64(tokens)*f.Token
}

//go:embed profiles/*.json
var profileFiles embed.FS

// Profiles returns the names of the profiles that the binary carries, sorted.
func Profiles() []string {
	files, err := fs.Glob(profileFiles, "profiles/*.json")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for i := range files {
		files[i] = strings.TrimSuffix(strings.TrimPrefix(files[i], "profiles/"), ".json")
	}
	return files
}

// LoadProfile returns a profile by the name of one that the binary carries, or reads a file whose name ends in .json.
func LoadProfile(name string) (*Profile, error) {
	var data []byte
	var err error
	if strings.HasSuffix(name, ".json") {
		data, err = os.ReadFile(name)
	} else if data, err = profileFiles.ReadFile("profiles/" + name + ".json"); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("sim: no profile %q: want one of %s, or a file whose name ends in .json", name,
			strings.Join(Profiles(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("sim: read profile: %w", err)
	}
	p, err := ReadProfile(data)
	if err != nil {
		return nil, fmt.Errorf("sim: profile %s: %w", name, err)
	}
	return p, nil
}

// ReadProfile parses and checks a profile.
func ReadProfile(data []byte) (*Profile, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	var p Profile
	if err := dec.Decode(&p); err != nil {
		return nil, err
	}
	return &p, p.Validate()
}

// Validate returns an error for the first impossible value.
func (p *Profile) Validate() error {
	largest := p.Prefill.Quality.Largest
	switch {
	case p.Name == "" || p.Source == "":
		return errors.New("a profile has a name and a source")
	case p.KVTokenBytes <= 0:
		return fmt.Errorf("kv_token_bytes is %d: want more than 0", p.KVTokenBytes)
	case p.DeviceBytes < 0 || p.HostBytes < 0 || p.DeviceBytes+p.HostBytes == 0:
		return fmt.Errorf("device_bytes %d and host_bytes %d: want memory for KV", p.DeviceBytes, p.HostBytes)
	case p.DeviceBytes > 0 && p.HostBytes > 0 && !(p.HostLink > 0):
		return fmt.Errorf("host_link is %v bytes per second: want more than 0", p.HostLink)
	case !(p.Noise >= 0 && p.Noise <= 1) || p.MaxRows < 0:
		return fmt.Errorf("noise %v and max_rows %d: want 0 to 1 and at least 0", p.Noise, p.MaxRows)
	case p.Batches != nil && !p.Batches.valid():
		return fmt.Errorf("batches %+v: want milliseconds and tiles of at least 0, and rows or keys that take time",
			*p.Batches)
	case !(p.Slowdown >= 0 && p.Slowdown <= 100):
		return fmt.Errorf("slowdown is %v: want 0 to 100", p.Slowdown)
	case !(p.Added >= 0) || !p.Ratios.valid():
		return fmt.Errorf("added_ms is %v and ratios are %v: want at least 0 and numbers above 0", p.Added, p.Ratios)
	case !p.Front.Idle.valid() || !p.Front.Beside.valid():
		return fmt.Errorf("idle_ratios and busy_ratios are %v and %v: want numbers above 0", p.Front.Idle, p.Front.Beside)
	case !(min(p.Front.Request, p.Front.Token, p.Front.Item, p.Front.Busy, p.Front.Delay) >= 0):
		return fmt.Errorf("front %+v: want milliseconds of at least 0", p.Front)
	case p.RowBytes < 0 || p.RowBytes > 0 && !(p.RowLink > 0):
		return fmt.Errorf("row_bytes %d and row_link %v: want a link for rows", p.RowBytes, p.RowLink)
	case !(p.Prefill.Predict(largest.Rows, largest.Keys, largest.Requests) > 0):
		return errors.New("prefill.quality.largest is the largest batch that was measured: want rows, keys and requests " +
			"above 0")
	}
	return p.Prefill.Validate()
}

// Ratios are equally likely, in ascending order.
type Ratios []float64

// valid reports whether all are above 0 and at most 1000.
func (r Ratios) valid() bool {
	return !slices.ContainsFunc(r, func(v float64) bool { return !(v > 0 && v <= 1000) })
}

// draw returns one of them; 1 if there are none.
func (r Ratios) draw(random *rand.Rand) float64 {
	if len(r) == 0 {
		return 1
	}
	return r[random.IntN(len(r))]
}
