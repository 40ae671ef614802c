package sample

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"

	"github.com/myriad-go/myriad/tools/internal/procfs"
)

func (s *Sample) readRequestedParts(slowMarker *Sampler, pids []int) error {
	if runtime.GOOS != "linux" {
		return procfs.ErrNotAvailable
	}
	var errs []error
	try := func(part Parts, pid int, read func() error) {
		if s.Parts&part == 0 {
			return
		}
		if err := slowMarker.readAndMarkIfSlow(part, read); err != nil && (pid == 0 || !isEnding(pid, err)) {
			errs = append(errs, fmt.Errorf("sample: %w", err))
		}
	}
	// Processor times come first, because reading the other parts uses processor time.
	for _, pid := range pids {
		stat, err := procfs.ReadStat(pid)
		if err == nil && !stat.Ended {
			p := Process{PID: pid}
			if s.Parts&CPU != 0 {
				p.setThreadsAndExactCPUTime(&stat)
			}
			s.Processes = append(s.Processes, p)
		} else if err != nil && !procfs.IsNotFoundOrExited(err) {
			errs = append(errs, err)
		}
	}
	m := &s.Machine
	try(MachineCPU, 0, func() (err error) { m.CPUTime, err = procfs.ReadCPUTimeAndPressure(); return err })
	for i := range s.Processes {
		p := &s.Processes[i]
		try(Memory, p.PID, func() error {
			memory, err := procfs.ReadProcessMemory(p.PID)
			p.RSS, p.PeakRSS, p.Anonymous = memory.RSS, memory.PeakRSS, memory.Anonymous
			return err
		})
		try(PSS, p.PID, func() error {
			rss, pss, err := procfs.ReadExactRSSAndPSS(p.PID)
			if err == nil {
				p.RSS, p.PSS = rss, pss
			}
			return err
		})
		try(Descriptors, p.PID, func() (err error) { p.Descriptors, err = procfs.CountDescriptors(p.PID); return err })
		try(Switches, p.PID, func() (err error) { p.Voluntary, p.Involuntary, err = procfs.CountContextSwitches(p.PID); return err })
		try(Sockets, p.PID, func() error {
			d, err := procfs.CountDescriptorsAndSockets(p.PID)
			p.Descriptors, p.Sockets = d.Open, d.Sockets
			return err
		})
	}
	try(MachineMemory, 0, func() (err error) { m.Memory, err = procfs.ReadMemory(); return err })
	try(Network, 0, func() (err error) { m.Network, err = procfs.ReadNetworkOfCurrentNamespace(); return err })
	try(Network, 0, func() (err error) { m.Files, err = procfs.CountOpenFilesOfMachine(); return err })
	if len(pids) > 0 && len(s.Processes) == 0 {
		errs = append(errs, ErrEnded)
	}
	return errors.Join(errs...)
}

func isEnding(pid int, err error) bool {
	if errors.Is(err, fs.ErrPermission) {
		var stat procfs.Stat
		if stat, err = procfs.ReadStat(pid); err == nil {
			return stat.Released
		}
	}
	return procfs.IsNotFoundOrExited(err)
}

func (p *Process) setThreadsAndExactCPUTime(stat *procfs.Stat) {
	p.Threads, p.User, p.System, p.Children = stat.Threads, stat.User, stat.System, stat.Children
	if p.PID == os.Getpid() {
		own := OwnCPUTime()
		p.User, p.System = own.User, own.System
	} else if precise, err := procfs.ReadCPUTimeOfProcess(p.PID); err == nil { // a sandbox may allow only this process's clock
		part := 0.5
		if all := p.CPU(); all > 0 {
			part = float64(p.User) / float64(all)
		}
		p.User = time.Duration(part * float64(precise))
		p.System = precise - p.User
	}
}

func (r *Sampler) readAndMarkIfSlow(part Parts, read func() error) error {
	began := time.Now()
	err := read()
	if part&costlyParts != 0 && time.Since(began) > slowRead {
		if r.slow == nil {
			r.slow = make(map[Parts]time.Time)
		}
		r.slow[part] = began
	}
	return err
}
