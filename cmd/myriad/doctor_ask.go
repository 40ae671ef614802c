package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/myriad-go/myriad/doctor"
)

// question is what a command asks the doctor before it begins.
type question struct {
	plan doctor.Plan
	// args are the flags by which `myriad doctor` is asked the same.
	args []string
	// free says that the number of connections is not asked for, but follows from
	// the limit of descriptors: that one is not near then.
	free bool
}

// ask says on standard error which wall is near, if one is: two lines at most. It
// never fails a command: where the machine can't be read it says nothing.
func ask(cmd *cobra.Command, q question) {
	report, err := examine(q.plan)
	if err != nil {
		return
	}
	for _, line := range q.answer(report) {
		fmt.Fprintf(cmd.ErrOrStderr(), "myriad: %s\n", line)
	}
}

// nearShare is the share of a wall from which on it is called near.
const nearShare = 0.8

// answer is what there is to say: of the first wall that stops the plan or is near,
// and of the first that hurts it.
func (q *question) answer(report *doctor.Report) (lines []string) {
	n := report.Plan.Connections
	hard, soft := q.first(report, false), q.first(report, true)
	switch {
	case hard == nil:
	case hard.Near(n):
		lines = append(lines, fmt.Sprintf("this machine stops at %d connections of %d: %s; %s", hard.Holds, n, wallText(hard), q.advice(n)))
	default:
		lines = append(lines, fmt.Sprintf("%d connections are %d%% of what this machine holds, %d: %s; %s",
			n, int64(n)*100/hard.Holds, hard.Holds, wallText(hard), q.advice(n)))
	}
	if soft != nil {
		lines = append(lines, fmt.Sprintf("%s hurts from %d connections of %d on; %s", wallText(soft), soft.Holds, n, q.advice(n)))
	}
	return lines
}

// first is the nearest wall that is near, nil for none. Soft ones do not count
// before they hurt.
func (q *question) first(report *doctor.Report, soft bool) (first *doctor.Wall) {
	n := report.Plan.Connections
	for i := range report.Walls {
		w := &report.Walls[i]
		if w.Soft != soft || q.free && w.Name == "nofile" || w.Name == "io_uring" { // the command says that itself
			continue
		}
		near := w.Near(n) || !soft && w.Holds != doctor.Unlimited && float64(n) > nearShare*float64(w.Holds)
		if near && (first == nil || w.Holds < first.Holds) {
			first = w
		}
	}
	return first
}

// wallText names a wall and its present value.
func wallText(w *doctor.Wall) string {
	if w.Present == "" {
		return w.Name
	}
	return fmt.Sprintf("%s (%s)", w.Name, w.Present)
}

func (q *question) advice(n int) string {
	return fmt.Sprintf("`%s` says how to move it", strings.Join(append([]string{"myriad doctor -n", fmt.Sprint(n)}, q.args...), " "))
}
