// Package simpaper repeats the papers' cluster experiments in virtual time and prints the papers' values beside the
// simulator's.
//
// What is assumed of each experiment is data, in assumptions/*.yaml: it was committed before the first run.
package simpaper

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"grebe/internal/config"
)

// Experiment is a figure or table of a paper.
type Experiment struct {
	Name        string      `yaml:"name"`
	Paper       string      `yaml:"paper"`       // what it is, in the paper's words
	Assumptions []string    `yaml:"assumptions"` // all that the paper does not say, or that is read from it
	Explained   []string    `yaml:"explained"`   // written after the runs: what explains differences
	Stream      Stream      `yaml:"stream"`
	Measure     string      `yaml:"measure"` // see measures
	Load        Share       `yaml:"load"`    // of measure latency
	Scenario    config.Part `yaml:"scenario"`
	Items       string      `yaml:"items"`         // memory of items: fit gives them what their map needs
	ItemsAtMost string      `yaml:"items_at_most"` // of a node
	Runs        []Trial     `yaml:"runs"`
	Compare     []Compare   `yaml:"compare"`
}

// Stream says where requests come from. One of its first four fields is set.
type Stream struct {
	Workload string `yaml:"workload"` // of package workload
	RcLLM    string `yaml:"rcllm"`    // prompts of a dataset of RcLLM
	Beauty   string `yaml:"beauty"`   // candidates from Amazon Beauty: walks
	Regime   string `yaml:"regime"`   // of package regime

	Users         int     `yaml:"users"`          // of a workload who send requests, if it differs
	Items         int     `yaml:"items"`          // size of the catalog, if it differs
	ItemTokens    float64 `yaml:"item_tokens"`    // mean, if it differs
	Communities   int     `yaml:"communities"`    // of the catalog
	Share         float64 `yaml:"share"`          // of the candidates that come from the user's community
	CommunityZipf float64 `yaml:"community_zipf"` // exponent of the law by which users have communities
	Candidates    int     `yaml:"candidates"`
	Hot           float64 `yaml:"hot"`  // share of requests from hot users
	Part          float64 `yaml:"part"` // of a regime's tables, for nodes that are a part of its node; 1
	Skip          int     `yaml:"skip"` // epochs of a regime to leave out at the beginning
}

// Share is a load relative to the closed-loop throughput of a run, or to what it sustains.
type Share struct {
	Of        string  `yaml:"of"` // the run, or the end of its name among those that begin alike
	Share     float64 `yaml:"share"`
	Sustained bool    `yaml:"sustained"` // relative to the rate that the run sustains at the SLO
}

// Trial is one run.
type Trial struct {
	Name   string      `yaml:"name"`
	Stream *Stream     `yaml:"stream"` // instead of the experiment's
	Items  string      `yaml:"items"`  // instead of the experiment's
	Static bool        `yaml:"static"` // the best static share of memory, instead of the allocator
	Set    config.Part `yaml:"set"`    // keys of the scenario that differ
}

// Compare is a value of the paper: of one run, of the ratio of two, or of the largest of several ratios.
type Compare struct {
	What    string      `yaml:"what"`
	Of      string      `yaml:"of"`
	To      string      `yaml:"to"`
	Largest [][2]string `yaml:"largest"`
	Metric  string      `yaml:"metric"` // of measure latency: mean, p50, p99; of local: mean, p50
	Per     float64     `yaml:"per"`    // the ratio is divided by it; 1
	// One of these is set: the value, its range over datasets, or the least that agrees.
	Paper float64     `yaml:"paper"`
	Range *[2]float64 `yaml:"range"`
	Least float64     `yaml:"least"`
}

var measures = []string{"throughput", "rate", "latency", "footprint", "local"}

//go:embed assumptions/*.yaml
var files embed.FS

// Names returns the names of all experiments, sorted.
func Names() []string {
	found, err := fs.Glob(files, "assumptions/*.yaml")
	if err != nil {
		panic(err) // the pattern is constant
	}
	for i := range found {
		found[i] = strings.TrimSuffix(strings.TrimPrefix(found[i], "assumptions/"), ".yaml")
	}
	return found
}

// Load returns an experiment by name.
func Load(name string) (*Experiment, error) {
	data, err := files.ReadFile("assumptions/" + name + ".yaml")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("bench sim-paper: no experiment %q: want one of %s", name, strings.Join(Names(), ", "))
	}
	if err != nil {
		return nil, fmt.Errorf("bench sim-paper: %w", err)
	}
	var e Experiment
	if err := config.Decode(data, &e); err != nil {
		return nil, fmt.Errorf("bench sim-paper: %s: %w", name, err)
	}
	if !slices.Contains(measures, e.Measure) {
		return nil, fmt.Errorf("bench sim-paper: %s: measure %q: want one of %v", name, e.Measure, measures)
	}
	return &e, nil
}
