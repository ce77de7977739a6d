package measure

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime"
	"slices"
	"strings"

	"grebe/app"
	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/eval"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/model/hstu"
)

// setup is one way of computing that --compare names.
type setup struct {
	name      string
	device    string // "": as configured
	level     string // of the CPU's kernels; "": the best
	dtype, kv string // "": as configured
	weights   string // "": as configured
	keep      bool   // a calibration keeps some of the matrices
	parallel  int
	passes    int
}

// atATime is how many requests batched setups have under way.
const atATime = 16

// parseSetup reads the words of a setup, joined by +.
func parseSetup(text string) (setup, error) {
	s := setup{name: text}
	for word := range strings.SplitSeq(text, "+") {
		switch word {
		case "cpu", "cuda":
			s.device = word
		case "plain", "avx2", "avx512", "amx":
			s.device, s.level = "cpu", word
		case "f32", "bf16":
			s.dtype = word
		case "int8", "fp8":
			s.weights = word
		case "calibrated":
			s.keep = true
		case "kv-f32", "kv-bf16", "kv-fp8":
			s.kv = strings.TrimPrefix(word, "kv-")
		case "batched":
			s.parallel = atATime
		case "cached":
			s.passes = 2
		default:
			return s,
				cli.Usagef("--compare: %s: %q: want words such as cpu, avx512, cuda, f32, bf16, int8, fp8, calibrated, kv-fp8, "+
					"batched, cached, joined by +, or a file of --json", text, word)
		}
	}
	if s.keep && s.weights == "" {
		return s, cli.Usagef("--compare: %s: calibrated says what int8 or fp8 keeps: name one of them", text)
	}
	return s, nil
}

// compareSetups measures with all setups and says what they change, or, where there is one alone, what it reaches: to
// be compared elsewhere.
func (c *Models) compareSetups(w *cli.World, tmp string) (result, error) {
	// What can be wrong is found before anything is measured.
	parsed, earlier := make([]setup, len(c.Compare)), make([][]eval.Setup, len(c.Compare))
	for i, text := range c.Compare {
		var err error
		if strings.HasSuffix(text, ".json") {
			earlier[i], err = readReports(text)
		} else {
			parsed[i], err = parseSetup(text)
		}
		if err != nil {
			return nil, err
		}
	}
	var data *eval.Data
	var items string
	var all []eval.Setup
	for i, s := range parsed {
		if earlier[i] != nil {
			all = append(all, earlier[i]...)
			continue
		}
		if data == nil {
			var err error
			if data, items, err = c.Data(tmp); err != nil {
				return nil, err
			}
		}
		r, err := c.measureSetup(w, tmp, data, items, &s)
		if err != nil && w.Ctx.Err() != nil && len(all) > 0 {
			fmt.Fprintf(w.Stderr, "interrupted: %s is left out, and what follows\n", s.name)
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		all = append(all, eval.Setup{Name: s.name, Report: r})
	}
	if len(all) == 1 {
		return all[0].Report, nil
	}
	return eval.Compare(all)
}

// result is what can be printed.
type result interface {
	JSON(io.Writer) error
	Text(io.Writer) error
}

// readReports reads what an earlier run printed: a report, or those of a comparison.
func readReports(file string) ([]eval.Setup, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var c eval.Contrast
	if err := json.Unmarshal(text, &c); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	if len(c.Reports) == 0 {
		var r eval.Report
		if err := json.Unmarshal(text, &r); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		return []eval.Setup{{Name: strings.TrimSuffix(file, ".json"), Report: &r}}, nil
	}
	var out []eval.Setup
	for i, r := range c.Reports {
		out = append(out, eval.Setup{Name: c.Setups[i].Name, Report: r})
	}
	return out, nil
}

// measureSetup asks all questions with one setup.
func (c *Models) measureSetup(w *cli.World, tmp string, data *eval.Data, items string, s *setup) (*eval.Report, error) {
	one := *c
	if s.device != "" {
		one.Device = &s.device
	}
	if s.dtype != "" {
		one.DType = s.dtype
	}
	one.Parallel, one.Passes = max(c.Parallel, s.parallel), max(c.Passes, s.passes)
	cfg, err := one.Configure(w, tmp, data, items)
	if err != nil {
		return nil, err
	}
	for i := range cfg.Models {
		if _, err := hstu.ReadConfig(cfg.Models[i].Path); err == nil {
			continue // models of events have KV in the products' format, and no weights of 8 bits
		}
		if s.kv != "" {
			cfg.Models[i].KVDType = s.kv
		}
		if s.weights != "" {
			cfg.Models[i].Weights, cfg.Models[i].WeightsKeep = s.weights, nil
		}
		if s.keep {
			cfg.Models[i].WeightsKeep = []string{config.KeepAuto}
		}
	}
	open := app.OpenDevices
	if s.level != "" {
		open = s.openLevel
	}
	fmt.Fprintln(w.Stderr, s.name)
	return one.ask(w, data, cfg, open, true)
}

// openLevel opens the CPU with kernels of the setup's level, in as many parts as there are workers.
func (s *setup) openLevel(cfg *config.Config, _ *slog.Logger) ([]compute.Device, error) {
	threads := cfg.Threads
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	var out []compute.Device
	for range max(1, cfg.Workers) {
		d, err := cpu.New(cpu.Options{Threads: max(1, threads/max(1, cfg.Workers)), Level: s.level})
		if err != nil {
			for _, d := range out {
				err = errors.Join(err, d.Close())
			}
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

// ask loads what a configuration names and asks all questions.
func (c *Models) ask(w *cli.World, data *eval.Data, cfg *config.Config, open app.Opener,
	bare bool) (*eval.Report, error) {
	s, err := app.Load(w.Ctx, cfg, app.Options{Log: c.Logger(w.Stderr), Version: "grebe eval", Open: open})
	if err != nil {
		return nil, err
	}
	defer s.Close()
	ways, notes := c.WaysOf(s, data)
	if c.Target != 0 {
		ways = blendWays(ways)
	}
	if len(ways) == 0 {
		return nil, fmt.Errorf("no model of the configuration can do any of %v", c.Ways)
	}
	bar := cli.NewRequestBar(w)
	r, err := eval.Run(w.Ctx, data, s.Service(), eval.Options{
		Ways: ways, Width: c.Width, Seed: c.Seed, Parallel: c.Parallel, Passes: c.Passes, Bare: bare, Progress: bar.Update})
	bar.End()
	if err != nil {
		return nil, err
	}
	if !bare && !c.IsUntrained() { // without intervals nothing is shown
		c.compareOrders(r, ways, s)
	}
	r.Device, r.Model, r.Random = s.Device().Name(), DescribeModels(s), c.IsUntrained()
	r.Notes = slices.Concat(r.Notes, notes)
	return r, nil
}

// compareOrders says which orders of the prompt to allow, for each model that was asked in both.
func (c *Models) compareOrders(r *eval.Report, ways []eval.Way, s *app.App) {
	for i := range s.Models() {
		m := &s.Models()[i]
		if !m.ReadsTexts() { // auto puts the user first
			continue
		}
		names := map[string]string{}
		for k := range ways {
			if w := &ways[k]; w.Model == m.Name && !w.Generate && w.Budget == nil {
				names[w.Prefix] = w.Name
			}
		}
		if names["user"] != "" && names["item"] != "" {
			r.CompareOrders(m.Name, names["user"], names["item"], c.Seed)
		}
	}
}
