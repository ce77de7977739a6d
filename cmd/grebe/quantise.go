package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"

	"grebe/internal/cli"
	"grebe/model/quantise"
)

// quantiseCmd reports what 8-bit weights cost and writes a checkpoint of them.
type quantiseCmd struct {
	Model string   `arg:"" type:"path" help:"Folder of the checkpoint." placeholder:"DIR"`
	Out   string   `short:"o" type:"path" help:"Write a checkpoint to this folder, which must not exist; default: report only." placeholder:"DIR"`
	Keep  []string `help:"Regular expressions of matrices that keep their format, such as layers\\.0\\." placeholder:"PATTERN"`
	JSON  bool     `name:"json" help:"Print JSON."`
}

// Help has the examples that kong prints.
func (quantiseCmd) Help() string {
	return `Rounds the matrices of all layers to 8-bit integers, one scale per output, and reports the relative error of the weights
of each layer. Embedding, head and norms keep their format. With --out it writes a checkpoint in the compressed-tensors format
(INT8 W8A8), which Grebe and other servers load. Grebe computes in its integers on CPUs.

The error of weights says little about answers: compare them with grebe eval --compare before you use the checkpoint.

Examples:

    grebe quantise ./checkpoint
    grebe quantise ./checkpoint --out ./checkpoint-int8 --keep 'layers\.0\.mlp\.down'`
}

// Run quantises and prints the report.
func (c *quantiseCmd) Run(w *cli.World) error {
	r, err := quantise.Run(quantise.Options{From: c.Model, To: c.Out, Keep: c.Keep})
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(w.Stdout).Encode(r)
	}
	t := tabwriter.NewWriter(w.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "relative error of the weights, in percent\nlayer\tqkv\tout\tgate up\tdown\tkept")
	for _, l := range r.Layers {
		fmt.Fprintf(t, "%d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\n", l.Layer, 100*l.QKV, 100*l.Out, 100*l.GateUp, 100*l.Down,
			strings.Join(l.Kept, ", "))
	}
	fmt.Fprintf(t, "%.2f GB, quantised %.2f GB; %.0f %% of the operations keep their format\n",
		float64(r.Bytes)/1e9, float64(r.After)/1e9, 100*r.Kept)
	if c.Out != "" {
		fmt.Fprintf(t, "written to %s\n", c.Out)
	}
	return t.Flush()
}
