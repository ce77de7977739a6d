package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"grebe/app"
	"grebe/compute"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/model/quantise"
)

// quantiseCmd reports what 8-bit weights cost and writes a checkpoint of them.
type quantiseCmd struct {
	Model     string   `arg:"" type:"path" help:"Folder of the checkpoint." placeholder:"DIR"`
	Out       string   `short:"o" type:"path" placeholder:"DIR"`
	Keep      []string `placeholder:"PATTERN"`
	Calibrate bool
	ItemsFile string `name:"items-file" type:"existingfile" placeholder:"FILE"`
	Format    string `default:"int8" enum:"int8,fp8"`
	RanksOnly bool
	JSON      bool `name:"json" help:"Print JSON."`
	cli.LogFlags
}

func (quantiseCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"out":  "Write a checkpoint to this folder, which must not exist; default: report only.",
		"keep": "Regular expressions of matrices that keep their format, such as layers\\.0\\.",
		"calibrate": "Run prompts to find the products that rounding changes most, and keep them: at most a tenth of the " +
			"operations.",
		"items-file": "Items (NDJSON) whose texts are the prompts of --calibrate; default: a short built-in text.",
		"ranks-only": "The model only ranks: behind the last attention, where only rows that are read are computed, " +
			"--calibrate counts a quarter of them; default: all, as in searches for items.",
		"format": "What --calibrate rounds to: int8 on a CPU, fp8 on a GPU; default ${default}.",
	}
}

// Help has the examples that kong prints.
func (quantiseCmd) Help() string {
	return `Rounds the matrices of all layers to 8-bit integers, one scale per output, and reports the relative error of
the weights of each layer. Embedding, head and norms keep their format. With --out it writes a checkpoint in the
compressed-tensors format (INT8 W8A8), which Grebe and other servers load. Grebe computes in its integers on CPUs.

With --calibrate the report says how far rounding each product, alone, moves the model's last states, and which
products to keep. It prints them as a line for the configuration (weights_keep). The checkpoint of --out keeps them.

Neither error says how much worse answers are: compare them with grebe eval --compare before you use the checkpoint.

Examples:

    grebe quantise ./checkpoint
    grebe quantise ./checkpoint --calibrate --items-file items.ndjson --out ./checkpoint-int8
    grebe quantise ./checkpoint --calibrate --items-file items.ndjson --format fp8
    grebe quantise ./checkpoint --out ./checkpoint-int8 --keep 'layers\.0\.mlp\.down'`
}

// Run quantises and prints the report.
func (c *quantiseCmd) Run(w *cli.World) error {
	if c.Out != "" && c.Format != "int8" {
		return cli.Usagef("--out writes int8: for fp8, set weights: fp8 and the weights_keep that --calibrate prints")
	}
	if !c.Calibrate && (c.ItemsFile != "" || c.Format != "int8" || c.RanksOnly) {
		return cli.Usagef("--items-file, --format and --ranks-only are for --calibrate")
	}
	var calibrated []quantise.Sensitivity
	if c.Calibrate {
		var err error
		if calibrated, err = c.calibrate(w); err != nil {
			return err
		}
	}
	keep := append(c.Keep, quantise.Kept(calibrated)...)
	r, err := quantise.Run(quantise.Options{From: c.Model, To: c.Out, Keep: keep, Read: c.read()})
	if err != nil {
		return err
	}
	r.Calibration = calibrated
	if c.JSON {
		return json.NewEncoder(w.Stdout).Encode(r)
	}
	return c.print(w.Stdout, r)
}

// calibrate measures on the CPU, or for fp8 on the GPU.
func (c *quantiseCmd) calibrate(w *cli.World) (_ []quantise.Sensitivity, err error) {
	cfg, format := config.Default(), compute.INT8
	if cfg.Device = "cpu"; c.Format == "fp8" {
		cfg.Device, format = "cuda", compute.FP8
	}
	prompts, err := app.CalibrationPrompts(c.Model, c.ItemsFile)
	if err != nil {
		return nil, err
	}
	device, err := app.OpenDevice(cfg, c.Logger(w.Stderr))
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, device.Close()) }()
	return quantise.Calibrate(w.Ctx, quantise.Calibration{Dir: c.Model, Device: device, Format: format, Prompts: prompts,
		Read: c.read()})
}

// read is quantise.Calibration.Read.
func (c *quantiseCmd) read() float64 {
	if c.RanksOnly {
		return quantise.RankedRows
	}
	return 1
}

// print writes the report for people.
func (c *quantiseCmd) print(out io.Writer, r *quantise.Report) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(r.Calibration) > 0 {
		fmt.Fprintf(t, "%s: how far rounding a product moves the model's last states, and its share of the operations, "+
			"in percent\nlayer\tqkv\t\tout\t\tgate up\t\tdown\n", c.Format)
		for i := range r.Calibration {
			printSensitivity(t, &r.Calibration[i])
		}
		t.Flush()
		fmt.Fprintln(t)
	}
	fmt.Fprintln(t, "relative error of the weights in int8, in percent\nlayer\tqkv\tout\tgate up\tdown\tkept")
	for _, l := range r.Layers {
		fmt.Fprintf(t, "%d\t%.2f\t%.2f\t%.2f\t%.2f\t%s\n", l.Layer, 100*l.QKV, 100*l.Out, 100*l.GateUp, 100*l.Down,
			strings.Join(l.Kept, ", "))
	}
	fmt.Fprintf(t, "%.2f GB, quantised %.2f GB; %.1f %% of the operations keep their format\n",
		float64(r.Bytes)/1e9, float64(r.After)/1e9, 100*r.Kept)
	if kept := quantise.Kept(r.Calibration); len(kept) > 0 {
		fmt.Fprintf(t, "weights: %s\nweights_keep: ['%s']\n", c.Format, strings.Join(kept, "', '"))
	}
	if c.Out != "" {
		fmt.Fprintf(t, "written to %s\n", c.Out)
	}
	return t.Flush()
}

// printSensitivity writes a cell of a layer's line. The first product begins it and the last ends it.
func printSensitivity(t io.Writer, s *quantise.Sensitivity) {
	if s.Product == "qkv" {
		fmt.Fprintf(t, "%d\t", s.Layer)
	}
	kept, end := "", "\t"
	if s.Kept {
		kept = " kept"
	}
	if s.Product == "down" {
		end = "\n"
	}
	fmt.Fprintf(t, "%.2f\t(%.1f)%s%s", 100*s.Error, 100*s.Share, kept, end)
}
