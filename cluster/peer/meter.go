package peer

import (
	"math"
	"time"
)

// meter estimates a peer's round trip and bandwidth. It is pure: times are arguments.
//
// The bandwidth is the ratio of sums that fade with the bytes that follow, not with time: idle time says nothing about
// a link, and a short transfer has little weight. Beside the recent sums there are long ones. While a peer is idle, the
// estimate moves from the recent to the long-term one, so that a bad moment does not keep others from ever trying the
// peer again.
type meter struct {
	trip         float64 // seconds, smoothed
	recent, long sums
	last         time.Time // of the last transfer
}

type sums struct{ bytes, seconds float64 }

const (
	recentBytes = 64 << 20 // the recent sums forget within about as many bytes
	longBytes   = 4 << 30
	priorBytes  = 1 << 20          // weight of the long-term rate beside the recent sums
	fade        = 10 * time.Second // of idleness, in which the recent sums lose most of their weight
	// The first transfers over new connections are slow. They weigh little beside a rate that is expected before anything
	// is measured: a node that seems to be behind a slow link gets few requests that could show better. The expected rate
	// loses its weight as bytes are moved, so that a slow link is known to be slow, also after it was idle.
	firstBytes = 8 << 20
	firstRate  = 1e9
	leastMoved = 64 << 10 // a smaller transfer measures the round trip, not the bandwidth
	tripWeight = 1. / 8
	tripJump   = 4 // a longer round trip than this multiple of the estimate counts as this multiple
)

func (s *sums) add(bytes, seconds, memory float64) {
	keep := math.Exp(-bytes / memory)
	s.bytes, s.seconds = s.bytes*keep+bytes, s.seconds*keep+seconds
}

// answered adds a round trip.
func (m *meter) answered(d time.Duration) {
	s := max(d.Seconds(), 1e-9)
	if m.trip == 0 {
		m.trip = s
		return
	}
	m.trip += tripWeight * (min(s, tripJump*m.trip) - m.trip)
}

// moved adds a transfer that ended at now and took d.
func (m *meter) moved(now time.Time, bytes int64, d time.Duration) {
	if bytes < leastMoved || d <= 0 {
		return
	}
	keep := m.weight(now)
	m.recent.bytes, m.recent.seconds = m.recent.bytes*keep, m.recent.seconds*keep
	m.recent.add(float64(bytes), d.Seconds(), recentBytes)
	m.long.add(float64(bytes), d.Seconds(), longBytes)
	m.last = now
}

// weight is what idleness leaves of the recent sums.
func (m *meter) weight(now time.Time) float64 {
	if m.last.IsZero() {
		return 0
	}
	return math.Exp(-max(0, now.Sub(m.last).Seconds()) / fade.Seconds())
}

// rate returns bytes per second, 0 before the first transfer.
func (m *meter) rate(now time.Time) float64 {
	if m.long.seconds == 0 {
		return 0
	}
	w, prior, first := m.weight(now), priorBytes/m.long.bytes, firstBytes*math.Exp(-m.long.bytes/firstBytes)
	seconds := m.recent.seconds*w + m.long.seconds*prior + first/firstRate
	return (m.recent.bytes*w + m.long.bytes*prior + first) / seconds
}

// roundTrip returns the smoothed round trip, 0 before the first.
func (m *meter) roundTrip() time.Duration { return time.Duration(m.trip * float64(time.Second)) }
