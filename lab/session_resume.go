package lab

import (
	"time"

	"github.com/myriad-go/myriad/internal/version"
)

// resume has what a journal says be part of the book. The journal is the session's.
func (s *session) resume(found *foundJournal, j *journal) {
	s.found, s.journal = found, j
	s.book.Notes = append(s.book.Notes, found.notes...)
}

// missing is how many runs are to be made at least.
func (s *session) missing() (n int) {
	r := s.repeats // a copy, that counts in advance
	for i := range s.book.Reports {
		for _, st := range s.plans[i] {
			attempts := s.found.runs[keyOf(i, st)]
			r.made(attempts, 0)
			if r.wants(attempts, st.workload.estimate()) {
				n++
			}
		}
	}
	return n
}

// tellResumed notes in the book and in the journal that it was resumed, and what has
// changed meanwhile.
func (s *session) tellResumed() error {
	before := len(s.book.Notes)
	now := thisMachine()
	s.book.note("Interrupted, and resumed on %s after %d of %d steps.", time.Now().UTC().Format(time.DateTime+" MST"), len(s.found.runs), s.total)
	if now != s.book.Machine {
		s.book.note("Resumed on another machine, %s: its runs and those before can't be compared.", now)
	}
	for _, r := range s.book.Reports {
		if r.Pinning.String() != s.pinning.String() {
			s.book.note("Resumed with another pinning, %s: its runs and those before can't be compared.", s.pinning)
			break
		}
	}
	if v := version.Myriad(); v != s.book.Version {
		s.book.note("Resumed by another version of Myriad, %q.", v)
	}
	for _, note := range s.book.Notes[before:] {
		if err := s.journal.add(entry{Note: note, Elapsed: s.found.elapsed}); err != nil {
			return err
		}
	}
	return nil
}
