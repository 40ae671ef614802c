package lab

import (
	"fmt"
	"strings"
)

// eachOther calls do with the own row and the row of each other side, for each
// workload that has both. It says whether there is any.
func (r *Report) eachOther(do func(name string, base, other row)) (found bool) {
	for _, w := range r.offering() {
		rows := r.rows(w.Name)
		base := r.own(rows)
		for _, other := range rows {
			if len(base.runs) > 0 && !r.sideOf(other.subject).Own {
				found = true
				do(w.Name+"/"+other.subject, base, other)
			}
		}
	}
	return found
}

// judgeOthers looks for sides that were ahead of the own pool. One that the
// watchdog has ended is not ahead; where a run of the own pool has failed, all are.
func (r *Report) judgeOthers() Finding {
	f := Finding{
		Claim:   fmt.Sprintf("no other side ahead both in goodput and in p99, by more than %.0f %% each, in any row", (ahead-1)*100),
		Outcome: NotMeasured,
	}
	var found []string
	compared := r.eachOther(func(name string, base, other row) {
		if failed := base.lacking(); failed != "" {
			found = append(found, name+" ("+failed+")")
		} else if c, ok := compare(base, other); ok && c.inBoth() {
			found = append(found, name+" ("+c.String()+")")
		}
	})
	if compared {
		f.Outcome = outcome(len(found) == 0)
	}
	if len(found) > 0 {
		f.Detail = strings.Join(found, "; ")
	}
	return f
}

// aheadInOne tells of the sides that were well ahead of the own pool in one of the
// two. That is no claim: one figure can be had for the other.
func (r *Report) aheadInOne() Finding {
	f := Finding{Claim: fmt.Sprintf("other sides ahead in only one of the two, by more than %.0f %%", (farAhead-1)*100), Detail: "none"}
	var found []string
	compared := r.eachOther(func(name string, base, other row) {
		if c, ok := compare(base, other); ok && !c.inBoth() {
			if figure := c.inOne(); figure != "" {
				found = append(found, name+" in "+figure+" ("+c.String()+")")
			}
		}
	})
	if !compared {
		f.Detail = NotMeasured
	}
	if len(found) > 0 {
		f.Detail = strings.Join(found, "; ")
	}
	return f
}

// comparison is the goodput and the p99 of another side and of the own pool.
type comparison struct{ good, baseGood, late, baseLate float64 }

// compare reads the figures off, false when there are none or the watchdog has
// ended the other side.
func compare(base, other row) (c comparison, ok bool) {
	for _, f := range []struct {
		v      *float64
		row    row
		figure Figure
	}{{&c.good, other, goodput}, {&c.late, other, p99}, {&c.baseGood, base, goodput}, {&c.baseLate, base, p99}} {
		if *f.v, ok = f.figure.median(f.row); !ok {
			return c, false
		}
	}
	return c, len(other.ended()) == 0
}

func (c comparison) inGoodput(by float64) bool { return c.good > by*c.baseGood }
func (c comparison) inP99(by float64) bool     { return by*c.late < c.baseLate }
func (c comparison) inBoth() bool              { return c.inGoodput(ahead) && c.inP99(ahead) }

// inOne names the figure in which the other side is far ahead, "" if there is none.
func (c comparison) inOne() string {
	switch {
	case c.inGoodput(farAhead):
		return "goodput"
	case c.inP99(farAhead):
		return "p99"
	}
	return ""
}

func (c comparison) String() string {
	return fmt.Sprintf("goodput %s against %s a second, p99 %s against %s",
		thousands(c.good), thousands(c.baseGood), p99.Text(c.late), p99.Text(c.baseLate))
}
