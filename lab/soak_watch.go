package lab

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/faults"
)

// What a server may have grown by from the first quarter of its time to the last:
// a part of what it had, and something beside, for a heap that breathes.
const (
	rssTolerance  = 0.20
	rssSlack      = 16 << 20 // bytes
	fdTolerance   = 0.10
	fdSlack       = 50
	fewestSamples = 3 // in a quarter
)

// soakWatch keeps what was seen of a server. The samples are few: soakSamples, and
// some more where the clock is late.
type soakWatch struct {
	from     time.Time
	duration time.Duration
	quarters [4]soakQuarter
	last     faults.Footprint
	reported time.Time        // when the last report was
	answers  int64            // that were reported
	causes   map[string]int64 // that were reported
}

// soakQuarter is a quarter of the time.
type soakQuarter struct{ rss, descriptors []float64 }

func (w *soakWatch) begin(at time.Time, d time.Duration) { w.from, w.reported, w.duration = at, at, d }

// sample keeps a footprint.
func (w *soakWatch) sample(at time.Time, f faults.Footprint) {
	w.last = f
	i := int(4 * at.Sub(w.from) / max(w.duration, 1))
	q := &w.quarters[min(max(i, 0), 3)]
	q.rss = append(q.rss, float64(f.RSS))
	q.descriptors = append(q.descriptors, float64(f.Descriptors))
}

// spare is how many sockets a server may have with so many honest clients:
// listeners, bells and the connection to its metrics come with it.
func (w *soakWatch) spare(honest int) int {
	const beside = 20
	return honest + beside
}

// rate is how many answers a second there were since it was last asked.
func (w *soakWatch) rate(answers int64, at time.Time) float64 {
	r := float64(answers-w.answers) / max(at.Sub(w.reported), time.Millisecond).Seconds()
	w.answers, w.reported = answers, at
	return r
}

// grown says by how much causes have grown since it was last asked, and leaves out
// what has not.
func (w *soakWatch) grown(causes map[string]int64) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(causes)) {
		if more := causes[name] - w.causes[name]; more > 0 {
			words = append(words, fmt.Sprintf("%s %s", name, thousands(float64(more))))
		}
	}
	w.causes = causes
	if len(words) == 0 {
		return "none"
	}
	return strings.Join(words, ", ")
}

// verdict compares the first quarter with the last.
func (w *soakWatch) verdict() (wrong []string) {
	first, last := &w.quarters[0], &w.quarters[3]
	if min(len(first.rss), len(last.rss)) < fewestSamples {
		return []string{fmt.Sprintf("only %d and %d samples in the first and last quarter; expected at least %d",
			len(first.rss), len(last.rss), fewestSamples)}
	}
	was, is := middle(first.rss), middle(last.rss)
	if is > was*(1+rssTolerance)+rssSlack {
		wrong = append(wrong, fmt.Sprintf("memory has grown from %.1f to %.1f MB", was/1e6, is/1e6))
	}
	was, is = middle(first.descriptors), middle(last.descriptors)
	if is > was*(1+fdTolerance)+fdSlack {
		wrong = append(wrong, fmt.Sprintf("descriptors have grown from %.0f to %.0f", was, is))
	}
	return wrong
}

// String compares the quarters in words.
func (w *soakWatch) String() string {
	first, last := &w.quarters[0], &w.quarters[3]
	return fmt.Sprintf("first to last quarter: %.1f to %.1f MB, %.0f to %.0f descriptors",
		middle(first.rss)/1e6, middle(last.rss)/1e6, middle(first.descriptors), middle(last.descriptors))
}

// middle is the median, 0 of nothing.
func middle(values []float64) float64 {
	v, _ := median(values)
	return v
}

// verdictOf makes an error of what was wrong.
func verdictOf(wrong []string) error { return errors.New(strings.Join(wrong, "; ")) }
