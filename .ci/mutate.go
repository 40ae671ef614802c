// Mutate makes twenty faulty changes to the core, one at a time, and reports each that the package's tests do not
// detect. Its arguments are the numbers of the changes to try, all by default. It does not modify files: go test
// reads the changed ones by -overlay.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// mutation is a deliberate bug, made by one replacement in a source file. The tests of the package must detect the bug.
type mutation struct {
	what     string
	file     string
	old, new string // old occurs once in the file
	tests    string // the package whose tests must fail
}

var mutations = []mutation{
	{"drop the first byte of input that is kept", "internal/engine/input.go",
		"\tc.runtime.appendToInputBuffer(c.in, p)\n}\n\n// MakeDeferredHandlerCalls", "\tc.runtime.appendToInputBuffer(c.in, p[1:])\n}\n\n// MakeDeferredHandlerCalls", "./internal/engine"},
	{"offer the handler input while output is above the high-water mark", "internal/engine/input.go",
		"return c.is(overHighWater) && !c.runtime.IgnoreHighWater", "return false && !c.runtime.IgnoreHighWater", "./internal/engine"},
	{"lose the unused input when the peer has ended", "internal/engine/input.go",
		"\t\trest = c.in.Bytes()\n", "\t\trest = nil\n", "./internal/engine"},
	{"never time out an idle connection", "internal/engine/timeouts.go",
		"limits[2] = newTimeLimitUnlessZero(heard, c.runtime.currentIdleTimeout(), ErrIdleTimeout)", "limits[2] = timeLimit{}", "./internal/engine"},
	{"count heartbeats as unanswered although the peer has spoken", "internal/engine/input.go",
		"c.state &^= neverHeard | unansweredMask", "c.state &^= neverHeard", "./internal/engine"},
	{"begin to close a connection twice", "internal/engine/close.go",
		"func (c *Conn) CloseWith(reason error) {\n\tif c.is(closing) {", "func (c *Conn) CloseWith(reason error) {\n\tif false {", "./internal/engine"},
	{"ignore the limit on unsent output", "internal/engine/ref.go",
		"> min(int64(maxPosted), senderWaiting-1)", "> senderWaiting-1", "./internal/engine"},
	{"send to the successor of a closed connection's slot", "internal/engine/ref.go",
		"\t\tif uint32(v>>32) != generation {\n\t\t\treturn ErrClosed\n\t\t}\n\t\tif int64", "\t\tif int64", "./internal/engine"},
	{"leave the mailbox marked empty", "internal/engine/mailbox.go",
		"\tif b.queuedMemory == 0 && b.maxDelayedBytes == 0 {\n\t\tb.nonEmpty.Store(true)\n", "\tif b.queuedMemory == 0 && b.maxDelayedBytes == 0 {\n", "./internal/engine"},
	{"skip the loop's wake-up", "internal/engine/loop/requests_linux.go",
		"func (l *Loop) wake() {\n", "func (l *Loop) wake() {\n\tif true {\n\t\treturn\n\t}\n", "./internal/engine/models"},
	{"forget a relay's pause", "internal/engine/relay.go",
		"\t\tif o.is(overHighWater) {\n\t\t\tc.state |= readPaused\n\t\t}\n\t\tc.runtime.Loop.PerformActionsLater(o)", "\t\tc.runtime.Loop.PerformActionsLater(o)", "./internal/engine"},
	{"tell a channel that waits for credit that there is none", "internal/engine/handover/receiver_linux.go",
		"case r.totalCredit > 0:", "case r.totalCredit < 0:", "./internal/engine/models"},
	{"admit one connection too many", "internal/admission/admission.go",
		"int(c.max-int64(uint32(v))-v>>32)", "int(c.max+1-int64(uint32(v))-v>>32)", "./internal/admission"},
	{"ignore the list of denied addresses", "internal/admission/admission.go",
		"return !c.deny.Contains(source) && ", "return ", "./internal/admission"},
	{"lose a job that is shed", "pool/queue.go",
		"\t\t*shed = append(*shed, s.Front().Task)\n", "", "./pool"},
	{"queue a job without waking a worker", "pool/submit.go",
		"\t\t\t\tp.wakeOrStartWorkerIfQueued()\n", "", "./pool"},
	{"accept Content-Length together with Transfer-Encoding", "web/head.go",
		"case h.seenTE && h.seenLen:", "case h.seenTE && h.seenLen && !eleven:", "./web"},
	{"unmask frames with the wrong byte of the mask", "internal/wsframe/frame.go",
		"mask[(maskOffset+i)&3]", "mask[i&3]", "./web"},
	{"publish without permission", "hub/publish.go",
		"case !u.mayPublish(kind, topic):", "case false:", "./hub"},
	{"never restart a worker process", "internal/supervisor/monitor.go",
		"for run := 0; !isClosed(s.draining); run++ {", "for run := 0; run < 1 && !isClosed(s.draining); run++ {", "./internal/supervisor"},
}

func main() {
	dir, err := os.MkdirTemp("", "mutate")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	defer os.RemoveAll(dir)
	tried, survived := 0, 0
	for i, m := range mutations {
		if len(os.Args) > 1 && !slices.Contains(os.Args[1:], strconv.Itoa(i+1)) {
			continue
		}
		tried++
		start := time.Now()
		killed, err := m.runTests(dir)
		took := time.Since(start).Round(time.Second)
		switch {
		case err != nil:
			fmt.Printf("%2d %s: %v\n", i+1, m.what, err)
			survived++
		case !killed:
			fmt.Printf("%2d SURVIVED %s: %s passes (%v)\n", i+1, m.what, m.tests, took)
			survived++
		default:
			fmt.Printf("%2d killed   %s: %s fails (%v)\n", i+1, m.what, m.tests, took)
		}
	}
	fmt.Printf("%d of %d killed\n", tried-survived, tried)
	if survived > 0 {
		os.RemoveAll(dir)
		os.Exit(1)
	}
}

// runTests runs the tests with the mutation and reports whether they fail. If the text to replace does not occur
// exactly once, or if the changed package does not compile, runTests returns an error.
func (m *mutation) runTests(tempDir string) (killed bool, err error) {
	source, err := os.ReadFile(m.file)
	if err != nil {
		return false, err
	}
	if n := strings.Count(string(source), m.old); n != 1 {
		return false, fmt.Errorf("%s contains %q %d times; expected once", m.file, m.old, n)
	}
	file, err := filepath.Abs(m.file)
	if err != nil {
		return false, err
	}
	changed, overlay := filepath.Join(tempDir, "changed.go"), filepath.Join(tempDir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {file: changed}})
	if err != nil {
		return false, err
	}
	if err := os.WriteFile(changed, []byte(strings.Replace(string(source), m.old, m.new, 1)), 0o600); err != nil {
		return false, err
	}
	if err := os.WriteFile(overlay, replace, 0o600); err != nil {
		return false, err
	}
	if out, err := exec.Command("go", "test", "-overlay", overlay, "-run", "^$", m.tests).CombinedOutput(); err != nil {
		return false, fmt.Errorf("the mutant does not compile: %s", out)
	}
	return exec.Command("go", "test", "-overlay", overlay, "-vet=off", "-failfast", "-timeout", "90s", m.tests).Run() != nil, nil
}
