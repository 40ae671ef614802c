package run

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/myriad-go/myriad/internal/sock"
	"github.com/myriad-go/myriad/tools/internal/lab/result"
	"github.com/myriad-go/myriad/tools/internal/lab/scenario"
	"github.com/myriad-go/myriad/tools/internal/procfs"
	"github.com/myriad-go/myriad/tools/internal/sample"
	"github.com/myriad-go/myriad/tools/load"
)

// windowParts, memoryParts and heldParts are the parts of a sample to take: windowParts at the start and the end of the
// measured window, memoryParts when memory is measured, and heldParts in runs with long-open connections.
const (
	windowParts = sample.CPU | sample.MachineCPU
	memoryParts = sample.CPU | sample.Memory | sample.PSS | sample.MachineMemory
	heldParts   = windowParts | memoryParts | sample.Network
)

const (
	settleTime = 200 * time.Millisecond
	// maxSlabChange is the change of kernel memory, in bytes, up to which memory counts as stable.
	maxSlabChange     = 1 << 20
	slabStableTimeout = 2 * time.Second
	// closeTimeout limits the time until a server has closed disconnected sockets.
	closeTimeout = 5 * time.Second
	// idleLeadTime is the pause between a memory sample and the measurement of idle CPU time.
	idleLeadTime    = 500 * time.Millisecond
	idlePeriods     = 4
	idlePeriod      = 500 * time.Millisecond
	idleMeasureTime = idleLeadTime + idlePeriods*idlePeriod + idlePeriod // includes one period of slack
)

func (m *serverMeasurement) appendSampleToRecord(s result.Sample) *result.Sample {
	m.record.Samples = append(m.record.Samples, s)
	return &m.record.Samples[len(m.record.Samples)-1]
}

func (m *serverMeasurement) sampleServerGeneratorAndMachine(checkpoint string, parts sample.Parts) (s result.Sample, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("cannot sample %s: %w", checkpoint, err)
		}
	}()
	s = result.Sample{Checkpoint: checkpoint, At: time.Now()}
	generator := 0
	if m.generator != nil {
		generator = m.generator.pid()
	}
	groups, err := procfs.PIDsByProcessGroup(m.server.pid(), generator)
	if err != nil {
		return s, err
	}
	taken, err := sample.TakeSample(parts, groups[m.server.pid()]...)
	if err != nil {
		return s, err
	}
	s.Server = totalUsage(&taken)
	copyMachineFigures(&s, &taken.Machine)
	if parts&sample.MachineCPU != 0 {
		own, err := sample.TakeSample(sample.CPU, os.Getpid())
		if err != nil {
			return s, err
		}
		total := own.SumOfProcesses()
		s.Lab = total.CPU()
	}
	if parts&sample.Network != 0 { // for a window, the load's own result is more precise
		s.Load = m.generatorUsage(groups[generator], parts)
	}
	if parts&sample.MachineMemory != 0 {
		if slabs, err := procfs.ReadSlabCaches(); err == nil { // usually only root may read slabs
			s.TCP = slabs["TCP"].Objects
		}
	}
	return s, nil
}

// generatorUsage returns the resource usage of the load generator. If the load generator has exited, the result
// contains only its processor time. If the usage is unknown, the result is zero.
func (m *serverMeasurement) generatorUsage(pids []int, parts sample.Parts) load.Usage {
	if m.generator == nil {
		return load.Usage{}
	}
	taken, err := sample.TakeSample(parts&(sample.CPU|sample.Memory|sample.PSS), pids...)
	if err == nil && len(taken.Processes) > 0 {
		return totalUsage(&taken)
	}
	select {
	case <-m.generator.done:
		state := m.generator.cmd.ProcessState
		return load.Usage{Process: sample.Process{User: state.UserTime(), System: state.SystemTime()}}
	case <-time.After(time.Second): // the generator was about to exit
		return load.Usage{}
	}
}

func totalUsage(s *sample.Sample) load.Usage {
	return load.Usage{Process: s.SumOfProcesses(), Processes: len(s.Processes)}
}

func copyMachineFigures(s *result.Sample, m *sample.Machine) {
	s.Busy, s.Stolen = m.Busy+m.Stolen, m.Stolen
	s.Slab, s.Tables, s.Free = m.Slab, m.PageTables+m.KernelStacks, m.Free
	s.Sockets, s.TimeWait, s.Files = m.Open, m.TimeWait, m.Files
}

// addServerConnCount stores the server's number of connections in s, or its number of sockets if the server has no
// admin address. If the server has an admin address and only one process, it also stores figures of the Go runtime.
// Memory must be sampled before this call, because counting takes kernel memory.
func (m *serverMeasurement) addServerConnCount(ctx context.Context, s *result.Sample) error {
	if m.admin == nil {
		with, err := m.sampleServerGeneratorAndMachine(s.Checkpoint, sample.Sockets)
		s.Server.Sockets = with.Server.Sockets
		return err
	}
	c, err := m.admin.readCounters(ctx)
	if err != nil {
		return err
	}
	s.Counts = &c
	if m.record.Processes < 2 {
		m.admin.readRuntimeUsageInto(ctx, false, &s.Server)
	}
	return nil
}

func (m *serverMeasurement) closeFirstConnAndSampleEmptyServer(ctx context.Context, closeConn func() error) error {
	if !m.sampled {
		return closeConn()
	}
	with, err := m.sampleServerGeneratorAndMachine("", sample.Sockets)
	closeConn()
	if err != nil {
		return err
	}
	for end := time.Now().Add(time.Second); ; {
		now, err := m.sampleServerGeneratorAndMachine("", sample.Sockets)
		if err != nil {
			return err
		}
		if now.Server.Sockets < with.Server.Sockets || time.Now().After(end) {
			break // the server's sockets are not visible: continue
		}
		if err := sleepContext(ctx, pollInterval); err != nil {
			return err
		}
	}
	s, err := m.sampleServerGeneratorAndMachine("ready", memoryParts)
	if err == nil {
		err = m.addServerConnCount(ctx, &s)
	}
	if err != nil {
		return err
	}
	m.baseConns = s.OpenConns()
	m.appendSampleToRecord(s)
	return nil
}

// sampleWhenConnsAndMemorySettle waits for two conditions: the memory is stable, and acceptOpenConns returns true.
// acceptOpenConns receives the number of connections that the load generator has open to the server.
// sampleWhenConnsAndMemorySettle takes a sample when both conditions are met, or after the timeout. Before each check,
// it forces garbage collections in the server. accepted is the last result of acceptOpenConns.
func (m *serverMeasurement) sampleWhenConnsAndMemorySettle(ctx context.Context, checkpoint string, timeout time.Duration, acceptOpenConns func(open int) bool) (accepted bool, _ error) {
	if !m.sampled {
		return true, sleepContext(ctx, settleTime)
	}
	collections := laterGCRuns
	if checkpoint == touched {
		collections = firstGCRuns
	}
	began := time.Now()
	for last := int64(-1); ; {
		if m.admin != nil && m.record.Processes < 2 {
			m.admin.forceServerGC(ctx, collections)
		}
		if err := sleepContext(ctx, settleTime); err != nil {
			return false, err
		}
		s, err := m.sampleServerGeneratorAndMachine(checkpoint, memoryParts)
		if err != nil {
			return false, err
		}
		past := time.Since(began)
		still := last >= 0 && max(s.Slab-last, last-s.Slab) <= maxSlabChange
		last = s.Slab
		if !still && past < min(timeout, slabStableTimeout) {
			continue
		}
		if err := m.addServerConnCount(ctx, &s); err != nil {
			return false, err
		}
		if ok := acceptOpenConns(s.OpenConns() - m.baseConns); ok || past >= timeout {
			m.appendSampleToRecord(s)
			return ok, nil
		}
	}
}

func (m *serverMeasurement) shouldMeasureIdleCPU() bool {
	i := slices.IndexFunc(m.workload.Phases, func(p scenario.Phase) bool { return p.Do == scenario.Hold })
	return m.sampled && i >= 0 && i+1 < len(m.workload.Phases) && m.workload.Phases[i+1].Do == scenario.Load &&
		m.workload.Phases[i].For.Std()/2 >= idleMeasureTime
}

func (m *serverMeasurement) measureIdleCPUIntoLastSample(ctx context.Context) error {
	kept := &m.record.Samples[len(m.record.Samples)-1]
	var before result.Sample
	for i, wait := range slices.Concat([]time.Duration{idleLeadTime}, slices.Repeat([]time.Duration{idlePeriod}, idlePeriods)) {
		if err := sleepContext(ctx, wait); err != nil {
			return err
		}
		now, err := m.sampleServerGeneratorAndMachine(kept.Checkpoint, sample.CPU)
		if err != nil {
			return err
		}
		if i > 0 {
			kept.Resting = append(kept.Resting, (now.Server.CPU()-before.Server.CPU()).Seconds()/now.At.Sub(before.At).Seconds())
		}
		before = now
	}
	return nil
}

func (m *serverMeasurement) sampleAtWindowStartOrEnd(checkpoint string, countSegments bool) error {
	if !m.sampled {
		return nil
	}
	parts := windowParts
	if checkpoint == "measured" {
		parts |= sample.Memory
	}
	taken, err := m.sampleServerGeneratorAndMachine(checkpoint, parts)
	if err != nil {
		return err
	}
	s := m.appendSampleToRecord(taken)
	most := m.workload.ConnsWithPublishersAndSlow() + 100
	switch {
	case m.workload.HeartbeatInterval() > 0:
	case countSegments:
		if found, err := sock.SumAcceptedConnSegments(m.server.port(), most); err == nil { // not supported by all kernels
			s.Accepted, s.SegmentsIn, s.SegmentsOut = found.Sockets, found.In, found.Out
		}
	case checkpoint == "measuring":
		s.Accepted, _ = sock.CountAcceptedConns(m.server.port(), most)
	}
	return nil
}

// SampleOwnMemory samples the memory of this process, including statistics of the Go runtime.
func SampleOwnMemory(checkpoint string) result.Sample {
	s := result.Sample{Checkpoint: checkpoint, At: time.Now()}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	taken, _ := sample.TakeSample(sample.Memory|sample.PSS, os.Getpid()) // on error, only the Go runtime's statistics are set
	s.Server = totalUsage(&taken)
	s.Server.StackInuse, s.Server.HeapInuse, s.Server.Sys = int64(m.StackInuse), int64(m.HeapInuse), int64(m.Sys)
	return s
}

// startMeasuringForeignCPU starts to measure how many CPUs other programs keep busy. The returned function ends the
// measurement and returns the averages. foreign includes stolen, the CPU time that the host of a virtual machine took.
// Both are 0 if they are unknown.
func startMeasuringForeignCPU() func() (foreign, stolen float64) {
	before, err := sample.TakeSample(windowParts, os.Getpid())
	return func() (foreign, stolen float64) {
		after, err2 := sample.TakeSample(windowParts, os.Getpid())
		if errors.Join(err, err2) != nil {
			return 0, 0
		}
		took := after.At.Sub(before.At).Seconds()
		is, was := after.SumOfProcesses(), before.SumOfProcesses()
		own := is.CPU() + is.Children - was.CPU() - was.Children
		stole := after.Machine.Stolen - before.Machine.Stolen
		all := after.Machine.Busy - before.Machine.Busy + stole
		return max(0, (all-own).Seconds()/took), max(0, stole.Seconds()/took)
	}
}
