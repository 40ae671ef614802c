package admission

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
	"time"
)

func takeAllTokens(c *Controller, now time.Duration) (n int) {
	for n < 200_000 && c.TakeRateToken(now) == 0 {
		n++
	}
	return n
}

func TestTokenRatesBeyond(t *testing.T) {
	for _, rate := range []int{1e9, 2e9, max(maxRate, math.MaxInt>>29), math.MaxInt} {
		d := NewController(Config{Rate: rate})
		for _, now := range []time.Duration{0, 1, math.MaxInt64, math.MinInt64, 0, math.MaxInt64} {
			for range 1000 {
				if got := d.TakeRateToken(now); got != 0 {
					t.Fatalf("%d a second at %d: wait for %v", rate, now, got)
				}
			}
		}
	}
}

func TestTokenClockGoesBack(t *testing.T) {
	d := NewController(Config{Rate: 10})
	now := time.Hour
	takeAllTokens(d, now)
	if got := d.TakeRateToken(now - time.Second); got != 100*time.Millisecond {
		t.Errorf("a second back: wait for %v, want 100ms", got)
	}
	if got := takeAllTokens(d, now); got != 0 {
		t.Errorf("%d were gained by a look from earlier", got)
	}
	if got := takeAllTokens(d, now+100*time.Millisecond); got != 1 {
		t.Errorf("%d after 100ms, want 1", got)
	}
	// a clock that was reset is followed without a gain
	if got := takeAllTokens(d, 0); got != 0 {
		t.Errorf("%d were gained by a clock that was set back", got)
	}
	if got := takeAllTokens(d, 500*time.Millisecond); got != 5 {
		t.Errorf("%d half a second after the clock was set back, want 5", got)
	}
	if got := takeAllTokens(d, -math.MaxInt64); got != 0 {
		t.Errorf("%d were gained by a clock that was set back very far", got)
	}
	if got := d.TakeRateToken(math.MaxInt64); got < 0 || got > time.Second {
		t.Errorf("wait for %v", got)
	}
}

// exactBucket implements the same limit as a generic cell rate algorithm (ITU-T I.371) with big integers;
// times are in nanoseconds multiplied by the rate.
type exactBucket struct {
	rate *big.Int
	full *big.Int // when the bucket is full again
}

func (e *exactBucket) takeToken(now time.Duration) time.Duration {
	at := new(big.Int).Mul(big.NewInt(int64(now)), e.rate)
	if e.full.Cmp(at) < 0 {
		e.full.Set(at)
	}
	after := new(big.Int).Add(e.full, big.NewInt(int64(time.Second))) // after this token
	most := new(big.Int).Mul(big.NewInt(int64(time.Second)), e.rate)
	early := after.Sub(after, most.Add(most, at))
	if early.Sign() <= 0 {
		e.full.Add(e.full, big.NewInt(int64(time.Second)))
		return 0
	}
	wait, rest := early.QuoRem(early, e.rate, new(big.Int))
	if rest.Sign() > 0 {
		wait.Add(wait, big.NewInt(1))
	}
	return time.Duration(wait.Int64())
}

func TestTokenAgainstExact(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		rate := 1 + r.IntN(int(math.Pow(10, float64(1+r.IntN(5)))))
		d := NewController(Config{Rate: rate})
		e := exactBucket{big.NewInt(int64(rate)), new(big.Int)}
		now := time.Duration(r.Int64N(int64(time.Hour)))
		for step := range 2000 {
			got, want := d.TakeRateToken(now), e.takeToken(now)
			if got != want {
				t.Fatalf("seed %d, %d a second, step %d: wait for %v, want %v", seed, rate, step, got, want)
			}
			switch r.IntN(4) {
			case 0:
				now += got
			case 1:
				now += time.Duration(r.Int64N(int64(2*time.Second)/int64(rate) + 1))
			case 2:
				now += max(got-1, 0)
			}
			if r.IntN(500) == 0 {
				now += time.Duration(r.Int64N(int64(3 * time.Second)))
			}
			if step == 1000 { // times whose product with the rate exceeds 64 bits follow
				now += 100_000 * time.Hour
			}
			if got < 0 || got > time.Second {
				t.Fatalf("seed %d: wait for %v", seed, got)
			}
		}
	}
}
