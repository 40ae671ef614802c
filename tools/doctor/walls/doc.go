// Package walls compares the predictions of package doctor with real connections. It contains only tests.
//
// Each test creates a small environment with kernel facilities: a network namespace, process limits, control
// groups. One limit ("wall") is set low there. The doctor reads the environment and predicts the number of
// connections at which the wall stops a plan. Then a server, the command myriad or package net, accepts real
// connections until they reach the wall. They must stop at the predicted number, the error must name the wall,
// and the doctor's changes must move the wall.
//
// machine_linux_test.go tests limits that exist once per machine. These tests change a machine setting for some
// seconds. A separate process restores the setting, even if the test is killed.
package walls
