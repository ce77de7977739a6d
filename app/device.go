package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
	"grebe/compute/cuda/driver"
	"grebe/compute/null"
	"grebe/engine"
	"grebe/internal/config"
	"grebe/internal/human"
	"grebe/model"
)

// OpenDevice opens the device that cfg names. With auto that is the first GPU, or the CPU if no GPU is usable. The
// caller MUST Close it.
func OpenDevice(cfg *config.Config, log *slog.Logger) (compute.Device, error) {
	if !cfg.Computes() {
		return null.New(null.Options{}), nil // it takes no memory for weights
	}
	if strings.HasPrefix(cfg.Device, "none") {
		batch, token, err := cfg.NoDevice()
		if err != nil {
			return nil, fmt.Errorf("device: %w", err)
		}
		log.Warn("this device computes nothing: scores have no meaning", "device", cfg.Device)
		return null.New(null.Options{Fixed: batch, Row: token}), nil
	}
	if cfg.Device != "cpu" {
		d, err := cuda.New(cuda.Options{})
		if err == nil {
			return d, nil
		}
		if cfg.Device == "cuda" {
			return nil, fmt.Errorf("device cuda: %w (grebe doctor says more)", err)
		}
		sayWhyCPU(err, log)
	}
	return cpu.New(cpu.Options{Threads: threadsOf(cfg)})
}

// sayWhyCPU logs why no GPU is used. Without a driver it does not warn, because such a machine has no GPU.
func sayWhyCPU(err error, log *slog.Logger) {
	var missing *driver.MissingError
	if errors.As(err, &missing) && missing.Driver() {
		log.Info("running on the CPU: this machine has no NVIDIA driver")
		return
	}
	log.Warn("running on the CPU: the GPU cannot be used", "reason", err)
}

// OpenDevices opens the device that cfg names. If that is a GPU and there are several, it opens one more for each
// further worker, as far as there are GPUs. The caller MUST Close them.
func OpenDevices(cfg *config.Config, log *slog.Logger) ([]compute.Device, error) {
	first, err := OpenDevice(cfg, log)
	if err != nil {
		return nil, err
	}
	all := []compute.Device{first}
	if _, gpu := first.(cuda.Device); !gpu {
		return all, nil
	}
	count, err := cuda.Count()
	for i := 1; i < min(cfg.Workers, count) && err == nil; i++ {
		var d compute.Device
		if d, err = cuda.New(cuda.Options{GPU: i}); err == nil {
			all = append(all, d)
		}
	}
	if err != nil {
		for _, d := range all {
			err = errors.Join(err, d.Close())
		}
		return nil, fmt.Errorf("device cuda: a GPU for each of %d workers: %w", cfg.Workers, err)
	}
	return all, nil
}

// describeGPUs logs which GPUs are used, and how others share them.
func describeGPUs(devices []compute.Device, log *slog.Logger) {
	for i, d := range devices {
		gpu, ok := d.(cuda.Device)
		if !ok {
			continue
		}
		info := gpu.Context().Info()
		free, total := d.Memory().Sizes()
		attrs := []any{"gpu", i, "name", info.Name, "uuid", info.Sharing.UUID, "multiprocessors", info.Processors,
			"free", human.Bytes(free), "total", human.Bytes(total)}
		if how := info.Sharing.String(); how != "" {
			attrs = append(attrs, "shared", how)
		}
		if visible := os.Getenv("CUDA_VISIBLE_DEVICES"); visible != "" {
			attrs = append(attrs, "cuda_visible_devices", visible)
		}
		log.Info("gpu", attrs...)
	}
}

// countDevices reports how long each GPU has work, how much of its memory is in use, and which rows it caches.
func (a *App) countDevices() error {
	if err := errors.Join(a.registry.Register(a.rows), a.registry.Register(a.divided)); err != nil {
		return err
	}
	for i, d := range a.devices {
		gpu, ok := d.(interface{ Busy() time.Duration })
		if !ok {
			continue
		}
		labels := prometheus.Labels{"device": strconv.Itoa(i)}
		memory := d.Memory()
		for _, c := range []prometheus.Collector{
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Name:        "grebe_device_busy_seconds_total",
				Help:        "Time in which a GPU had work of this process; its rate is the share of time that the GPU is busy.",
				ConstLabels: labels,
			}, func() float64 { return gpu.Busy().Seconds() }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name:        "grebe_device_used_bytes",
				Help:        "Memory of a GPU, or of its MIG instance, that is in use, by this process and by others.",
				ConstLabels: labels,
			}, func() float64 {
				free, total := memory.Sizes()
				return float64(total - free)
			}),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name:        "grebe_device_bytes",
				Help:        "Memory of a GPU, or of its MIG instance.",
				ConstLabels: labels,
			}, func() float64 {
				_, total := memory.Sizes()
				return float64(total)
			}),
		} {
			if err := a.registry.Register(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// replica is a model on a device.
type replica struct {
	model  engine.Model
	device compute.Device
}

// replicas opens a model on the further GPUs, if there are any and it can use them. A model that generates cannot: its
// codes are searched on the first GPU only. The result is in the order of workers.
func (m *Model) replicas(ctx context.Context, mc *config.Model, first engine.Model, generates bool) ([]replica, error) {
	out := []replica{{first, m.app.device}}
	if len(m.app.devices) == 1 {
		return out, nil
	}
	if generates {
		m.app.log.Warn("a model that generates items runs on the first GPU only", "model", mc.Name,
			"gpus", len(m.app.devices))
		return out, nil
	}
	for _, d := range m.app.devices[1:] {
		again, err := model.Open(mc.Path, d, model.Options{DType: mc.DType, KV: mc.KVDType, Weights: mc.Weights,
			Keep: m.keep, Context: ctx})
		if err != nil {
			return nil, err
		}
		m.closers.add(again.Close)
		out = append(out, replica{again, d})
	}
	return out, nil
}

// cacheMemory returns the memory for the KV of a model's replicas: the device's, or the host's if several GPUs share
// it.
func cacheMemory(replicas []replica) compute.Memory {
	m := replicas[0].device.Memory()
	if len(replicas) > 1 {
		return m.Host()
	}
	return m
}

// workerDevice returns worker i's device: the GPU of its replica, or its share of the cores.
func (m *Model) workerDevice(cfg *config.Config, r *replica, i int) (compute.Device, error) {
	if _, gpu := r.device.(cuda.Device); gpu || len(m.app.devices) > 1 || cfg.Workers == 1 {
		return r.device, nil
	}
	d, err := cpu.New(cpu.Options{Threads: max(1, (threadsOf(cfg)+i)/cfg.Workers)})
	if err != nil {
		return nil, err
	}
	m.closers.add(d.Close)
	return d, nil
}
