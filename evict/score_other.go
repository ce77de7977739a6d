//go:build !amd64 || noasm

package evict

import "unsafe"

type wideTrees struct{}

func widen(*Model) *wideTrees { return nil }

func (m *Model) predict(samples []Sample, out []float32) { m.predictPlain(samples, out) }

func (m *Model) one(s *Sample) float32 { return m.onePlain(s) }

func prefetch(unsafe.Pointer) {}

func prefetchHistory(*history) {}
