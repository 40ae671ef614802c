package lab

import (
	"bufio"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/myriad-go/myriad/internal/procfs"
)

// How the lab leaves nothing behind, however it ends.
//
// The kernel kills a child of the launcher when the lab is killed, but not what that child
// has started, and it removes no file. So before anything else the lab starts a guard: the
// same executable as "bench-guard", in a session of its own, so that no Ctrl-C reaches it,
// and on all CPUs. The guard reads a pipe whose other end only the lab has: the descriptor
// is closed on exec, and a child that is still between fork and exec dies with the thread
// that forked it. The pipe's end is therefore the lab's end, be it orderly or by SIGKILL.
//
// First the pipe says a mark, 128 random bits, then the paths of what is temporary, each
// before it is made. Every process of the lab has the mark in its environment, and so has
// what it starts, whatever group or session that joins: only a program that clears the
// environment of another escapes. TMPDIR is the lab's own directory for all of them, so
// that their temporary files are in it. When the pipe ends, the guard has every process
// with the mark end, by SIGTERM and a moment later by SIGKILL, looks again until two looks
// found none, and removes the paths. It has no more to do, and ends.
//
// A guard has another mark, and whoever has a mark starts no lab: an executable without
// these subcommands, which would begin a lab of its own as the guard of one, does not.
//
// An orderly lab closes the pipe itself, and waits for the guard: there is one way to
// clean up, and it is used every time. Between two runs, when no process should be left,
// the lab kills what has the mark.
//
// On a system without /proc there is no guard: what the lab started ends with it as far as
// it is told to, and the lab removes its directory when it ends in order.

const (
	// markName is the environment variable with the mark.
	markName = "MYRIAD_LAB"
	// guardGrace is how long processes may take to end after SIGTERM, and guardBound how
	// long after SIGKILL.
	guardGrace = time.Second
	guardBound = 5 * time.Second
	// maxGuarded bounds the lines that the guard is told.
	maxGuarded = 16
	// ours begins the name of whatever the guard removes.
	ours = "myriad-"
)

// guard is the lab's end of the pipe, and its directory for temporary files.
type guard struct {
	mark  string
	dir   string
	paths []string  // to remove in the end
	pipe  *os.File  // nil where there is no guard
	cmd   *exec.Cmd // nil where there is no guard
}

// startGuard starts the guard and makes the directory. What it removes in the end, too, is
// more. The caller has to call end.
func startGuard(self string, more ...string) (*guard, error) {
	if os.Getenv(markName) != "" { // it would go on and on
		return nil, wrong("this process was started by a lab, and is about to start one; expected Options.Self to be " +
			"an executable with myriad's subcommands, such as load")
	}
	bits := make([]byte, 16)
	rand.Read(bits) // never fails
	g := &guard{mark: hex.EncodeToString(bits)}
	g.dir = filepath.Join(os.TempDir(), ours+"lab-"+g.mark)
	g.paths = append([]string{g.dir}, more...)
	if err := g.launch(self); err != nil {
		return nil, fmt.Errorf("cannot start the guard, %s bench-guard: %w", self, err)
	}
	err := g.tell(append([]string{g.mark}, g.paths...))
	if err == nil {
		err = os.Mkdir(g.dir, 0o700)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("cannot make a temporary directory: %w", err), g.end())
	}
	return g, nil
}

// tell writes lines to the guard. The pipe has room for all of them.
func (g *guard) tell(lines []string) error {
	if g.pipe == nil {
		return nil
	}
	_, err := io.WriteString(g.pipe, strings.Join(lines, "\n")+"\n")
	return err
}

// env is the environment of what the lab starts; nil is the lab's own.
func (g *guard) env() []string {
	if g == nil {
		return nil
	}
	return append(os.Environ(), markName+"="+g.mark, "TMPDIR="+g.dir)
}

// sweep kills what has the mark between two runs; a lab without a guard has none.
func (g *guard) sweep() error {
	if g == nil {
		return nil
	}
	return endMarked(markName+"="+g.mark, 0)
}

// end has the guard clean up, and waits for it.
func (g *guard) end() error {
	var err error
	if g.pipe != nil {
		g.pipe.Close()
		timer := time.AfterFunc(guardGrace+2*guardBound, func() { g.cmd.Process.Kill() })
		err = g.cmd.Wait()
		timer.Stop()
	}
	if err != nil {
		err = fmt.Errorf("the guard could not end every process: %w", err)
	}
	for _, path := range g.paths {
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// Guard is the guard of a lab in another process, as "myriad bench-guard": the lab starts
// it by itself. It reads in to its end, which is the end of the lab, then ends every
// process of that lab, and removes the lab's temporary files. It takes some seconds at the
// most. It fails when in is not what a lab says, or when something was left over.
func Guard(in io.Reader) error {
	lines := bufio.NewScanner(in)
	var told []string
	for lines.Scan() {
		if told = append(told, lines.Text()); len(told) > maxGuarded {
			return wrong("more than %d lines; expected what \"myriad bench\" says to its guard", maxGuarded)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if len(told) == 0 {
		return nil // the lab ended before it began
	}
	if bits, err := hex.DecodeString(told[0]); err != nil || len(bits) != 16 {
		return wrong("the first line is %.50q; expected a mark, 32 hexadecimal digits: \"myriad bench\" starts its guard by itself", told[0])
	}
	err := endMarked(markName+"="+told[0], guardGrace)
	for _, path := range told[1:] {
		if !filepath.IsAbs(path) || !strings.HasPrefix(filepath.Base(path), ours) {
			err = errors.Join(err, wrong("%.200q is to be removed; expected an absolute path of a file %s*", path, ours))
			continue
		}
		err = errors.Join(err, os.RemoveAll(path))
	}
	return err
}

// endMarked ends every process with an entry in its environment, politely for the time of
// grace.
func endMarked(entry string, grace time.Duration) error {
	told := make(map[int]bool) // a second SIGTERM would be one too many
	for begin, empty := time.Now(), 0; empty < 2; {
		past := time.Since(begin)
		if past > grace+guardBound {
			return fmt.Errorf("processes are left %v after they were killed", guardBound)
		}
		n, err := eachMarked(entry, func(p *os.Process) {
			if past >= grace {
				p.Kill()
			} else if !told[p.Pid] {
				told[p.Pid] = true
				terminate(p)
			}
		})
		if errors.Is(err, procfs.ErrNotAvailable) {
			return nil
		}
		if err != nil {
			return err
		}
		if empty++; n > 0 {
			empty = 0
			time.Sleep(poll)
		}
	}
	return nil
}

// eachMarked calls do with every process that has an entry in its environment, and
// counts them. A process is held before it is looked at for a second time, so that do
// can't meet another one that has its number by then.
func eachMarked(entry string, do func(p *os.Process)) (n int, err error) {
	pids, err := procfs.WithEnv(entry)
	for _, pid := range pids {
		p, failed := os.FindProcess(pid)
		if failed != nil {
			continue // it has ended
		}
		if has, _ := procfs.HasEnv(pid, entry); has {
			n++
			do(p)
		}
		p.Release()
	}
	return n, err
}
