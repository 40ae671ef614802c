package baseline

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
)

func listenReusePort(ctx context.Context, addr string) (net.Listener, error) {
	config := sock.NewKeepaliveListenConfig(true, nil)
	return config.Listen(ctx, "tcp", addr)
}

// servePrefork starts several processes that serve connections on the same port. The first process inherits the
// listener ln. If the calling process is killed, the started processes are killed, too. servePrefork returns an error
// if a started process exits before ctx ends.
func servePrefork(ctx context.Context, ln net.Listener, o PreforkOptions) error {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	addr := ln.Addr().String()
	for i := range o.Processes {
		var err error
		if i > 0 {
			ln, err = listenReusePort(running, addr)
		}
		if err != nil {
			cancel(err)
			break
		}
		f, err := ln.(*net.TCPListener).File()
		ln.Close()
		if err != nil {
			cancel(err)
			break
		}
		wait.Go(func() {
			runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
			if err := runPreforkProcess(running, f, o.Command); err != nil {
				cancel(err)
			}
		})
	}
	<-running.Done()
	wait.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return context.Cause(running)
}

func runPreforkProcess(ctx context.Context, ownedListener *os.File, command []string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 3 * time.Second
	cmd.ExtraFiles = []*os.File{ownedListener}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	err := cmd.Start()
	ownedListener.Close()
	if err != nil {
		return err
	}
	_ = cmd.Wait() // ProcessState contains the result
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("a worker process has exited: %v", cmd.ProcessState)
}
