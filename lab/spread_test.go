package lab

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{
		{[]float64{100, 100}, 0},
		{[]float64{101, 99}, 6.353 * 0.02},
		{[]float64{110, 90, 100}, 1.304 * 0.20},
		{[]float64{100, 120, 80, 100}, 0.717 * 0.40},
		{[]float64{100, 120, 80, 100, 100}, 0.507 * 0.40},
		{[]float64{1, 2, 3, 4, 5, 9}, 5.5 / 3.5},           // the range of 6 is 97 %
		{[]float64{1, 2, 3, 4, 5, 6, 7, 8, 99}, 3.0 / 5.0}, // of 9 one is left out at each end
	} {
		if got, ok := spread(c.in); !ok || math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%v: got %v, %v, want %v", c.in, got, ok, c.want)
		}
	}
	for _, in := range [][]float64{nil, {100}, {0, 0}, {-5, -4}, {5, never, 6}, {never, never}, {1, 2, 3, never, never, never, never}} {
		if got, ok := spread(in); ok {
			t.Errorf("%v: got %v, want none", in, got)
		}
	}
}

// Where the ± is more than the figure, as with two rounds that differ, it is not written.
func TestAround(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want string
	}{
		{nil, none},
		{[]float64{100}, none},
		{[]float64{101, 99}, "±12.7 %"},
		{[]float64{100, 150}, "too few rounds"},
		{[]float64{1, 2, 9}, "too few rounds"},
		{[]float64{1, 2, 3, 4, 5, 9}, "±157.1 %"}, // no longer of too few
	} {
		if got := around(c.in); got != c.want {
			t.Errorf("%v: got %q, want %q", c.in, got, c.want)
		}
	}
}

// TestOutermost is by tables of the binomial distribution.
func TestOutermost(t *testing.T) {
	for n, want := range map[int]int{6: 0, 8: 0, 9: 1, 11: 1, 12: 2, 20: 5, 100: 39, maxRounds: 468, 100_000: 49_689} {
		if got := outermost(n); got != want {
			t.Errorf("%d values: %d are left out, want %d", n, got, want)
		}
	}
}

// noises are what figures of runs may be spread like.
var noises = map[string]func(*rand.Rand) float64{
	"normal":  (*rand.Rand).NormFloat64,
	"uniform": (*rand.Rand).Float64,
	// Of three degrees of freedom, by Student: far values are common.
	"heavy": func(r *rand.Rand) float64 {
		var sum float64
		for range 3 {
			v := r.NormFloat64()
			sum += v * v
		}
		return r.NormFloat64() / math.Sqrt(sum/3)
	},
	"cauchy":      func(r *rand.Rand) float64 { return r.NormFloat64() / r.NormFloat64() },
	"exponential": (*rand.Rand).ExpFloat64,
	// A machine that is slow now and then.
	"two states": func(r *rand.Rand) float64 { return r.NormFloat64()/20 + float64(r.IntN(4)/3) },
}

// TestSpreadAgrees draws two runs of the same scenario many times: at least 95 % of them
// agree within the spread that they print. On a machine that goes at one of two speeds,
// it may happen that all rounds of a run have the same: it is a little less then.
func TestSpreadAgrees(t *testing.T) {
	const pairs = 20_000
	for name, draw := range noises {
		for _, n := range []int{2, 3, 4, 5, 6, 9, 20} {
			random := rand.New(rand.NewPCG(1, uint64(n)))
			run := func() (middle, half float64) {
				values := make([]float64, n)
				for i := range values {
					values[i] = draw(random)
				}
				middle, _ = median(values)
				half, _ = margin(values)
				return middle, half
			}
			agree := 0
			for range pairs {
				a, plus := run()
				b, minus := run()
				if math.Abs(a-b) <= plus+minus {
					agree++
				}
			}
			least := 95
			if name == "two states" {
				least = 94
			}
			if agree < pairs*least/100 {
				t.Errorf("%s, %d rounds: %.1f %% agree, want %d", name, n, float64(agree)/pairs*100, least)
			}
		}
	}
}

// TestRangeFactors are those of a confidence interval of 95 % of normal values.
func TestRangeFactors(t *testing.T) {
	const runs = 200_000
	for n := range rangeFactors {
		random := rand.New(rand.NewPCG(2, uint64(n)))
		covered := 0
		for range runs {
			values := make([]float64, n)
			sum := 0.0
			for i := range values {
				values[i] = random.NormFloat64()
				sum += values[i]
			}
			if half, _ := margin(values); math.Abs(sum/float64(n)) <= half {
				covered++
			}
		}
		if share := float64(covered) / runs; math.Abs(share-0.95) > 0.002 {
			t.Errorf("%d values: %.4f of the intervals have the mean, want 0.95", n, share)
		}
	}
}
