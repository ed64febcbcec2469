/* pause holds a pod's namespaces open: it is the first process of the pod's
 * sandbox, reaps orphans where the pod shares its pid namespace, and ends on
 * SIGTERM or SIGINT. */
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int sig) { _exit(sig == SIGINT || sig == SIGTERM ? 0 : 128 + sig); }

static void reap(int sig) {
	(void)sig;
	while (waitpid(-1, NULL, WNOHANG) > 0) {
	}
}

int main(void) {
	struct sigaction on_end = {.sa_handler = end};
	struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};
	if (sigaction(SIGINT, &on_end, NULL) || sigaction(SIGTERM, &on_end, NULL) ||
	    sigaction(SIGCHLD, &on_child, NULL))
		return 1;
	for (;;)
		pause();
}
