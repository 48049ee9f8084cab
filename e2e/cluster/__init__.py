"""A real Kubernetes on one Linux machine, for tests: no docker, no registry, no virtual machine.

`python3 e2e/cluster up 2` builds what is missing and starts a control plane and two nodes. The control plane (etcd,
kube-apiserver, kube-controller-manager, kube-scheduler) runs in the machine's own namespaces and listens on loopback
and on a bridge of its own. A node (containerd, kubelet, kube-proxy) is a set of network, mount, pid, uts and ipc
namespaces with its own /var/lib, /var/log and /run: nodes share no state, their packet filters never touch the
machine's, and the end of a node's first process is that of everything on it. Nodes have no default route, so pods
cannot leave the machine.

Only the standard library is used: this runs before anything is installed.
"""
