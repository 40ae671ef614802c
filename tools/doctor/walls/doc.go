// Package walls compares the predictions of package doctor with real connections. It contains only tests.
//
// Each test creates an environment in which one operating system limit (a "wall") is low: a network namespace, process
// limits or a control group. Package doctor reads the environment and predicts the number of connections at which the
// limit stops a plan. Then a server accepts real connections until they reach the limit. They must stop at the
// predicted number, the error must name the limit, and the doctor's changes must raise it.
//
// Tests in machine_linux_test.go lower settings that exist once per machine, for some seconds. A separate process
// restores the setting, even if the test is killed.
package walls
