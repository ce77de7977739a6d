package tick

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestWait(t *testing.T) {
	const every = 100 * time.Millisecond
	day := time.Date(2026, 11, 18, 9, 30, 0, 0, time.UTC)
	for _, tt := range []struct{ after, want time.Duration }{
		{0, every}, {1, every - 1}, {every - 1, 1}, {every, every}, {30 * time.Millisecond, 70 * time.Millisecond},
	} {
		if got := wait(day.Add(tt.after), every); got != tt.want {
			t.Errorf("%v after a multiple: wait %v, want %v", tt.after, got, tt.want)
		}
	}
}

// Jobs that began at any times do their work at the same moments.
func TestTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const every = 200 * time.Millisecond
		moments := make(chan time.Time, 30)
		for i := range 3 {
			time.Sleep(time.Duration(i) * 37 * time.Millisecond)
			go func() {
				for range 10 {
					time.Sleep(Wait(every))
					moments <- time.Now()
				}
			}()
		}
		time.Sleep(time.Minute)
		count := map[time.Time]int{}
		for range 30 {
			count[<-moments]++
		}
		if len(count) != 10 {
			t.Errorf("30 wake-ups of three jobs at %d moments, want 10", len(count))
		}
	})
}
