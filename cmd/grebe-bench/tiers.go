package main

import (
	"errors"

	"grebe/bench/tiers"
	"grebe/compute"
	"grebe/compute/computetest"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
	"grebe/internal/cli"
)

type tiersCmd struct {
	Device   string   `default:"auto" want:"one of auto, cpu, cuda" placeholder:"DEVICE"`
	Families []string `want:"one of qwen2, qwen3, llama, hstu, qwen3-fp8" placeholder:"FAMILY"`
	Items    []int    `want:"at least 1" help:"Cached items per prompt; default 40,100,200,1000." placeholder:"N"`
	Scratch  []int    `want:"at least 1" placeholder:"N"`
	Layers   int      `want:"at least 1" help:"Layers of the models; default 9." placeholder:"N"`
	JSON     bool     `name:"json" help:"Print JSON."`
}

func (tiersCmd) FlagHelp() cli.Texts {
	return cli.Texts{
		"device":   "auto, cpu or cuda; default ${default}.",
		"families": "Kinds of models: qwen2, qwen3, llama, hstu, qwen3-fp8; default all.",
		"scratch":  "Layers whose keys fit into attention's scratch memory; default 1 to 8.",
	}
}

func (tiersCmd) Help() string {
	return `Checks that logits do not depend on where cached KV lies. KV from the device, from host memory and from disk
must give the logits of a prompt that is computed as a whole. On a CPU all bits must be equal; on a GPU the difference
must be within the rounding of bf16. Models are small, with random weights. Exits with 1 if a check fails.

Examples:

    grebe-bench tiers
    grebe-bench tiers --device cuda --families qwen3 --items 100 --scratch 1,2`
}

func (c *tiersCmd) Run(w *cli.World) error {
	o := tiers.Options{Families: c.Families, Items: c.Items, Scratch: c.Scratch, Layers: c.Layers, JSON: c.JSON}
	o.Open = func(scratch int) (compute.Device, error) {
		return cuda.New(cuda.Options{Scratch: scratch, FixedSplit: true})
	}
	onCPU := func() { // whose memory stands for a device's, beside the host's
		o.Limit = -1
		if c.Scratch == nil {
			o.Scratch = []int{1} // it has none
		}
		o.Open = func(int) (compute.Device, error) {
			d, err := cpu.New(cpu.Options{})
			if err != nil {
				return nil, err
			}
			return computetest.Far(d, true), nil
		}
	}
	switch n, err := cuda.Count(); {
	case c.Device == "cpu", c.Device == "auto" && (err != nil || n == 0):
		onCPU()
	case err != nil:
		return err
	case n == 0:
		return errors.New("there is no GPU")
	}
	_, err := tiers.Run(w.Ctx, o, w.Stdout)
	return err
}
