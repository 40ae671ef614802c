package lab

import (
	"context"
	"time"
)

// MillionLeft is what the machine has more than before the first connection, when both
// sides have ended. It is the whole machine's: what others do at the same time is in it.
type MillionLeft struct {
	// Waited is how long it took to come down to this.
	Waited time.Duration `json:"waited"`
	// Sockets, TimeWait and Files are as in MillionSample, Kernel is bytes.
	Sockets  int64 `json:"sockets"`
	TimeWait int64 `json:"time_wait"`
	Files    int64 `json:"files"`
	Kernel   int64 `json:"kernel"`
	// Most is the most that Kernel has been.
	Most int64 `json:"most"`
}

// What may be left: the kernel keeps some of its caches, and others open files too.
const (
	leftBound  = time.Second // and leftEach for each connection
	leftEach   = 30 * time.Microsecond
	leftShare  = 0.05
	leftKernel = 64 << 20
	leftFiles  = 200
)

// gone says whether everything has come back.
func (l *MillionLeft) gone() bool {
	return l.Sockets <= leftFiles && l.TimeWait <= 0 && l.Files <= leftFiles &&
		float64(l.Kernel) <= max(leftKernel, leftShare*float64(l.Most))
}

// left waits until the machine is as it was, but not for long.
func (m *millionRunner) left(ctx context.Context) error {
	before, began := &m.record.Before, time.Now()
	bound := leftBound + leftEach*time.Duration(m.workload.Connections)
	l := &MillionLeft{}
	m.record.Left = l
	for i := range m.record.Phases {
		l.Most = max(l.Most, m.record.Phases[i].End.Kernel()-before.Kernel())
	}
	for {
		var now MillionSample
		if err := now.readMachine(); err != nil {
			return err
		}
		l.Sockets, l.TimeWait, l.Files = now.Sockets-before.Sockets, now.TimeWait-before.TimeWait, now.Files-before.Files
		l.Kernel, l.Waited = now.Kernel()-before.Kernel(), time.Since(began)
		if l.gone() || l.Waited > bound {
			return nil
		}
		if err := pause(ctx, 10*poll); err != nil {
			return err
		}
	}
}
