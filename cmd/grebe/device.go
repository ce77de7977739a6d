package main

import (
	"fmt"
	"log/slog"
	"runtime"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
	"grebe/internal/config"
)

// openDevice opens the device that cfg names. With auto it is the first GPU, or the CPU when there is
// none that can be used. The caller MUST Close it.
func openDevice(cfg *config.Config, log *slog.Logger) (compute.Device, error) {
	if cfg.Device != "cpu" {
		d, err := cuda.New(cuda.Options{})
		if err == nil {
			return d, nil
		}
		if cfg.Device == "cuda" {
			return nil, fmt.Errorf("device cuda: %w (grebe doctor says more)", err)
		}
		log.Warn("no GPU to run on: using the CPU", "reason", err)
	}
	return cpu.New(cpu.Options{Threads: cfg.Threads})
}

// workerDevice returns worker i's device: the GPU, or its share of the cores.
func (s *stack) workerDevice(cfg *config.Config, i int) (compute.Device, error) {
	if _, gpu := s.device.(cuda.Device); gpu || cfg.Workers == 1 {
		return s.device, nil
	}
	threads := cfg.Threads
	if threads == 0 {
		threads = runtime.GOMAXPROCS(0)
	}
	d, err := cpu.New(cpu.Options{Threads: max(1, (threads+i)/cfg.Workers)})
	if err != nil {
		return nil, err
	}
	s.onClose(d.Close)
	return d, nil
}
